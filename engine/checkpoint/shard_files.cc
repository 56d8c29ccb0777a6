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
#include "base/json.h"
#include "base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace stagecoach::engine {
namespace {

constexpr char kPrefix[] = "layer-";
constexpr char kOptimizerSuffix[] = ".optimizer";
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

// Returns the file of the values of one layer's parameters, or of all their states.
ShardFile FileOf(int layer, absl::Span<const ModelParameter> parameters, absl::string_view suffix,
                 absl::Span<const char* const> state_names) {
  ShardFile file{.name = absl::StrFormat("%s%05d%s%s", kPrefix, layer, suffix, kExtension),
                 .layer = layer};
  for (const ModelParameter& parameter : parameters) {
    if (parameter.is_copy()) continue;
    if (state_names.empty()) {
      file.tensors.push_back({parameter.name, parameter.id, kTrainedValue, parameter.shape});
    }
    if (parameter.update.kind != UpdateRule::Kind::kOptimizer) continue;
    for (size_t state = 0; state < state_names.size(); ++state) {
      file.tensors.push_back({absl::StrCat(parameter.name, ".", state_names[state]), parameter.id,
                              static_cast<int>(state), parameter.shape});
    }
  }
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};  // some readers insist on this
  for (const ShardTensor& tensor : file.tensors) {
    header.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
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
  absl::ConsumeSuffix(&name, kOptimizerSuffix);
  return has_layer && absl::SimpleAtoi(name, &layer) ? layer : -1;
}

absl::StatusOr<std::vector<ShardFile>> ShardFilesOf(const ParameterTable& parameters,
                                                    const Optimizer& optimizer) {
  RETURN_IF_ERROR(CheckNames(parameters));
  std::vector<const char*> states;
  for (int state = 0; state < optimizer.states(); ++state) {
    states.push_back(optimizer.state_name(state));
  }
  std::vector<ShardFile> files;
  absl::Span<const ModelParameter> rest = parameters.all();
  while (!rest.empty()) {
    const int layer = rest.front().layer;
    const auto own = parameters.OfLayers(layer, layer);
    if (!std::all_of(own.begin(), own.end(), [](const auto& p) { return p.is_copy(); })) {
      files.push_back(FileOf(layer, own, "", {}));
      ShardFile of_states = FileOf(layer, own, kOptimizerSuffix, states);
      if (!of_states.tensors.empty()) files.push_back(std::move(of_states));
    }
    rest.remove_prefix(own.size());
  }
  return files;
}

}  // namespace stagecoach::engine
