#include "engine/models/resnet.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/toml.h"
#include "engine/models/model_file.h"
#include "engine/nn/parsing/parsed_layer.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

constexpr size_t kMaxGroups = 8;
constexpr int64_t kMaxGroupBlocks = 200;

// Returns entries of a model file's list of layers.
std::string ConvAndNorm(int64_t outputs, int64_t kernel, int64_t stride) {
  return absl::StrCat("  { type = \"conv2d\", outputs = ", outputs, ", kernel = ", kernel,
                      ", stride = ", stride, ", padding = ", kernel / 2,
                      ", bias = false }, { type = \"batch_norm\" },\n");
}

std::string ResNetBlockText(const ResNet& net, size_t group, int64_t block) {
  const std::string relu = "  { type = \"relu\" },\n";
  const int64_t outputs = net.outputs[group], inner = net.inner(group);
  const int64_t stride = group > 0 && block == 0 ? 2 : 1;
  std::string text = "\n[[layer]]\ntype = \"residual\"\nrelu = true\nlayers = [\n";
  if (net.is_bottleneck) {
    absl::StrAppend(&text, ConvAndNorm(inner, 1, 1), relu, ConvAndNorm(inner, 3, stride), relu,
                    ConvAndNorm(outputs, 1, 1), "]\n");
  } else {
    absl::StrAppend(&text, ConvAndNorm(inner, 3, stride), relu, ConvAndNorm(outputs, 3, 1), "]\n");
  }
  if (net.has_shortcut(group, block)) {
    absl::StrAppend(&text, "shortcut = [\n", ConvAndNorm(outputs, 1, stride), "]\n");
  }
  return text;
}

// Returns an integer of a document; 0 if there is none.
int64_t IntegerAt(const json& document, const std::string& pointer) {
  const json::json_pointer place(pointer);
  if (!document.contains(place) || !document[place].is_number_integer()) return 0;
  return document[place].get<int64_t>();
}

// Reads the extents off a ResNet's document: a group begins where images are halved.
ResNet ExtentsOfResNet(const json& document) {
  ResNet net;
  if (!document.contains("layer") || !document["layer"].is_array()) return net;
  net.stem = IntegerAt(document, "/layer/0/outputs");
  net.is_small = IntegerAt(document, "/layer/0/kernel") == 3;
  for (const json& layer : document["layer"]) {
    if (!layer.is_object() || layer.value("type", json()) != "residual") continue;
    const bool is_bottleneck = layer.contains(json::json_pointer("/layers/6"));
    const char* const convolution = is_bottleneck ? "/layers/3/stride" : "/layers/0/stride";
    if (net.blocks.empty() || IntegerAt(layer, convolution) == 2) {
      net.is_bottleneck = is_bottleneck;
      net.blocks.push_back(0);
      net.outputs.push_back(
          IntegerAt(layer, is_bottleneck ? "/layers/6/outputs" : "/layers/3/outputs"));
    }
    ++net.blocks.back();
  }
  return net;
}

// Returns a document without what is not about layers, and without what a run may start with.
// Pre-condition: the document has layers.
json LayersAlone(json document) {
  document.erase("input");
  json& last = document["layer"].back();
  if (last.is_object()) last.erase("deviation");
  return document;
}

}  // namespace

absl::Status CheckResNet(const ResNet& net) {
  const auto is_count = [](int64_t count, int64_t most) { return count >= 1 && count <= most; };
  bool fits = net.blocks.size() == net.outputs.size() && !net.blocks.empty() &&
              net.blocks.size() <= kMaxGroups && is_count(net.stem, kMaxFileOutputs);
  for (const int64_t blocks : net.blocks) fits = fits && is_count(blocks, kMaxGroupBlocks);
  for (const int64_t outputs : net.outputs) {
    fits = fits && is_count(outputs, kMaxFileOutputs) && (!net.is_bottleneck || outputs % 4 == 0);
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a ResNet has 1 to ", kMaxGroups, " groups of 1 to ", kMaxGroupBlocks, " blocks, and 1 to ",
      kMaxFileOutputs, " channels for each group, which a bottleneck divides by 4"));
}

std::string ModelFileOf(const ResNet& net) {
  const char* const stem = net.is_small ? "kernel = 3\nstride = 1\npadding = 1\n"
                                        : "kernel = 7\nstride = 2\npadding = 3\n";
  std::string text =
      absl::StrCat("input = \"image\"\n\n[[layer]]\ntype = \"conv2d\"\noutputs = ", net.stem, "\n",
                   stem, "bias = false\n");
  absl::StrAppend(&text, "\n[[layer]]\ntype = \"batch_norm\"\n\n[[layer]]\ntype = \"relu\"\n");
  if (!net.is_small) {
    absl::StrAppend(&text,
                    "\n[[layer]]\ntype = \"max_pool\"\nkernel = 3\nstride = 2\npadding = 1\n");
  }
  for (size_t group = 0; group < net.blocks.size(); ++group) {
    for (int64_t block = 0; block < net.blocks[group]; ++block) {
      absl::StrAppend(&text, ResNetBlockText(net, group, block));
    }
  }
  absl::StrAppend(&text,
                  "\n[[layer]]\ntype = \"global_avg_pool\"\n\n[[layer]]\ntype = \"linear\"\n",
                  "outputs = \"classes\"\n");
  return text;
}

absl::StatusOr<ResNet> ResNetOf(absl::string_view model_file) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(model_file));
  ResNet net = ExtentsOfResNet(document);
  if (CheckResNet(net).ok()) {
    ASSIGN_OR_RETURN(const json expected, base::ParseToml(ModelFileOf(net)));
    if (LayersAlone(document) == LayersAlone(expected)) return net;
  }
  return absl::FailedPreconditionError(
      "the layers are not those of a ResNet, as a model file for \"resnet18\" has them");
}

}  // namespace stagecoach::engine
