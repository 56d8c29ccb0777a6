#include "engine/checkpoint/shard_files.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/checkpoint/files/safetensors.h"

namespace stagecoach::engine {
namespace {

constexpr char kPrefix[] = "layer-";
constexpr char kOptimizerSuffix[] = ".optimizer";
constexpr char kFrozenSuffix[] = ".frozen";
constexpr char kRawName[] = "raw";
constexpr char kExtension[] = ".safetensors";

absl::Status CheckNames(const ParameterTable& parameters) {
  std::set<std::string> names;
  for (const ModelParameter& parameter : parameters.all()) {
    if (!base::IsUtf8(parameter.name)) {
      return base::DataError(
          absl::StrCat("the name of a parameter of layer ", parameter.layer, " is not UTF-8"));
    }
    if (!names.insert(parameter.name).second) {
      return base::DataError(absl::StrCat("there are two parameters \"", parameter.name,
                                          "\": give them different names"));
    }
  }
  return absl::OkStatus();
}

enum class Content : uint8_t { kValues, kStates, kFrozen };

// Returns a file of one layer's parameters.
ShardFile FileOf(int layer, absl::Span<const ModelParameter> parameters, Content content,
                 const Optimizer& optimizer) {
  const char* const suffix = content == Content::kStates   ? kOptimizerSuffix
                             : content == Content::kFrozen ? kFrozenSuffix
                                                           : "";
  ShardFile file{.name = absl::StrFormat("%s%05d%s%s", kPrefix, layer, suffix, kExtension),
                 .layer = layer,
                 .is_frozen = content == Content::kFrozen};
  for (const ModelParameter& parameter : parameters) {
    if (parameter.is_copy()) continue;
    const bool is_updated = parameter.update.kind == UpdateRule::Kind::kOptimizer;
    if (content != Content::kStates) {
      if (parameter.update.is_frozen() != file.is_frozen) continue;
      const int value = is_updated && optimizer.has_ema() ? optimizer.ema_state() : kTrainedValue;
      file.tensors.push_back(
          {parameter.name, parameter.id, value, parameter.shape, parameter.quantized});
      continue;
    }
    for (int state = 0; is_updated && state < optimizer.states(); ++state) {
      const bool is_ema = optimizer.has_ema() && state == optimizer.ema_state();
      const char* const name = is_ema ? kRawName : optimizer.state_name(state);
      file.tensors.push_back({absl::StrCat(parameter.name, ".", name), parameter.id,
                              is_ema ? kTrainedValue : state, parameter.shape});
    }
  }
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};  // some readers insist on this
  for (const ShardTensor& tensor : file.tensors) {
    const Tensor stored = tensor.stored();
    header.tensors.push_back({.name = tensor.name, .type = stored.dtype, .shape = stored.shape});
  }
  file.header = LayOutSafetensors(header);
  for (size_t i = 0; i < file.tensors.size(); ++i) file.tensors[i].begin = header.tensors[i].begin;
  return file;
}

}  // namespace

bool IsOptimizerFile(absl::string_view name) {
  return absl::EndsWith(name, absl::StrCat(kOptimizerSuffix, kExtension));
}

int LayerOfFile(absl::string_view name) {
  int layer = -1;
  const bool has_layer =
      absl::ConsumePrefix(&name, kPrefix) && absl::ConsumeSuffix(&name, kExtension);
  if (!absl::ConsumeSuffix(&name, kOptimizerSuffix)) absl::ConsumeSuffix(&name, kFrozenSuffix);
  return has_layer && absl::SimpleAtoi(name, &layer) ? layer : -1;
}

absl::StatusOr<std::vector<ShardFile>> ShardFilesOf(const ParameterTable& parameters,
                                                    const Optimizer& optimizer) {
  RETURN_IF_ERROR(CheckNames(parameters));
  std::vector<ShardFile> files;
  absl::Span<const ModelParameter> rest = parameters.all();
  while (!rest.empty()) {
    const int layer = rest.front().layer;
    const auto own = parameters.OfLayers(layer, layer);
    for (const Content content : {Content::kValues, Content::kStates, Content::kFrozen}) {
      ShardFile file = FileOf(layer, own, content, optimizer);
      if (!file.tensors.empty()) files.push_back(std::move(file));
    }
    rest.remove_prefix(own.size());
  }
  return files;
}

}  // namespace stagecoach::engine
