#include "engine/models/presets.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/models/resnet.h"
#include "engine/models/transformer.h"

namespace stagecoach::engine {
namespace {

// Returns a ResNet of the widths that were published.
std::string PublishedResNet(std::vector<int64_t> blocks, bool is_bottleneck, bool is_small) {
  ResNet net = {.blocks = std::move(blocks), .is_bottleneck = is_bottleneck, .is_small = is_small};
  for (const int64_t width : {64, 128, 256, 512}) {
    net.outputs.push_back(is_bottleneck ? 4 * width : width);
  }
  return ModelFileOf(net);
}

constexpr std::array<Preset, 4> kPresets = {{
    {"resnet18", "ResNet-18, for images of 224 x 224",
     [] {
       return PublishedResNet({2, 2, 2, 2}, false, false);
     }},
    {"resnet50", "ResNet-50, for images of 224 x 224",
     [] {
       return PublishedResNet({3, 4, 6, 3}, true, false);
     }},
    {"resnet18-small", "ResNet-18, for images of 32 x 32",
     [] {
       return PublishedResNet({2, 2, 2, 2}, false, true);
     }},
    {"resnet50-small", "ResNet-50, for images of 32 x 32",
     [] {
       return PublishedResNet({3, 4, 6, 3}, true, true);
     }},
}};

}  // namespace

absl::Span<const Preset> Presets() { return kPresets; }

const Preset* FindPreset(absl::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

absl::StatusOr<std::string> ModelFileNamed(absl::string_view name) {
  if (const Preset* const preset = FindPreset(name); preset != nullptr) return preset->text();
  ASSIGN_OR_RETURN(const Transformer transformer, NamedTransformer(name));
  return ModelFileOf(transformer);
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names = TransformerNames();
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace stagecoach::engine
