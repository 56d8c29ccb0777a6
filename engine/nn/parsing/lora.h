#ifndef STAGECOACH_ENGINE_NN_PARSING_LORA_H_
#define STAGECOACH_ENGINE_NN_PARSING_LORA_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace stagecoach::engine {

// Low-rank adaptation (Hu et al. 2021): the parameters of a model are frozen, and linear layers get
// adapters, which are trained, and some other layers as a whole. Regular value type.
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16.0;
  // The scale is alpha / sqrt(rank) rather than alpha / rank (Kalajdzievski 2023).
  bool is_rank_stabilized = false;
  double dropout = 0.0;  // of what the adapters of a layer take, in training; in [0, 1)
  // The linear layers, by the names of their outputs (AdaptedOutputsOf); none: all.
  std::vector<std::string> targets;
  // The layers that are trained as a whole, by kWholeLayers, in that order.
  std::vector<std::string> trained;

  float scale() const;
  // Whether the outputs of that name get an adapter, if the model has them.
  bool adapts(absl::string_view name) const;
  // Whether layers of that kind (WholeLayerOf) are trained as a whole.
  bool trains(absl::string_view kind) const;

  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

inline constexpr int64_t kMaxLoraRank = 4096;

// The kinds of layers that can be trained as a whole beside adapters.
inline constexpr const char* kWholeLayers[] = {"embedding", "head", "norms"};
// Returns the kind of a type of layers in model files; "": none.
absl::string_view WholeLayerOf(absl::string_view type);

// Parses "rank=16,alpha=32,dropout=0.05,rslora=1,targets=q_proj+v_proj,train=embedding+head". The
// rank is needed; alpha is twice the rank by default. InvalidArgument names what is wrong.
absl::StatusOr<LoraOptions> ParseLora(absl::string_view text);
// Reads the table [lora] of a model file, which has the same keys, except that targets and train
// are arrays.
absl::StatusOr<LoraOptions> ReadLora(const nlohmann::json& table, base::ObjectReader reader);
// Returns the text that ParseLora reads.
std::string LoraTextOf(const LoraOptions& options);
// Returns that table, with its heading.
std::string LoraTableOf(const LoraOptions& options);

// Consecutive outputs of a linear layer that have an adapter of their own. The name is that of
// Hugging Face's layer: "q_proj".
struct AdaptedOutputs {
  std::string name;
  int64_t first = 0, outputs = 1;

  friend bool operator==(const AdaptedOutputs&, const AdaptedOutputs&) = default;
};

// Returns the parts of the linear layer that has `outputs` outputs and is entry `i` of a list of
// layers in a model file: equal ones with the names at its key "parts", or else what is beside it
// tells what it is for:
//   before attention, of rotary positions  q_proj, k_proj, v_proj     behind it  o_proj
//   before attention, of others            c_attn                     behind it  c_proj
//   before swiglu or geglu                 gate_proj, up_proj         behind it  down_proj
//   with an activation, before a linear layer  c_fc                   behind it  c_proj
//   anywhere else                          linear
std::vector<AdaptedOutputs> AdaptedOutputsOf(const nlohmann::json& list, size_t i, int64_t outputs);

// Reads the key "parts" of a linear layer: names that divide its outputs. InvalidArgument names
// what is wrong.
absl::Status CheckParts(base::ObjectReader& reader, int64_t outputs);

// Returns the names of all parts in a list of layers, including those inside others.
std::set<std::string> LinearLayersIn(const nlohmann::json& list);

// Checks the options against the layers of a model file. InvalidArgument: a target is none of
// LinearLayersIn, with the nearest name, or there are none; a kind of layers to train that there is
// none of; an embedding or a head alone whose table is also the other's.
absl::Status CheckLoraLayers(const LoraOptions& options, const nlohmann::json& list);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARSING_LORA_H_
