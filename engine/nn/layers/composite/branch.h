#ifndef STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCH_H_
#define STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/layer.h"
#include "engine/nn/sequential.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::engine {

// Returns an address within an area; null if the area has no bytes, or does not exist in the call
// at hand.
inline std::byte* At(std::byte* area, int64_t offset) {
  return area == nullptr ? area : area + offset;
}

inline void AddWork(const partition::Work& part, partition::Work& sum) {
  sum.flops += part.flops;
  sum.bytes += part.bytes;
}

// A chain of layers inside a layer that has several on the same x and adds up their outputs; and
// the places of its memory in that of the whole.
struct Branch {
  Sequential chain;
  int listed = 0;              // layers of a list that it stands for (LayerSpec::stands_for)
  size_t first_parameter = 0;  // among those of the whole
  int64_t aside_bytes = 0;     // the most of its layers (LayerSpec::aside_bytes)
  int64_t stash = 0, weight_stash = 0, gradient_stash = 0, cache = 0;  // offsets
  // Set if a layer reads its own output again, which it needs where the sum does not overwrite it:
  // the offset in the weight stash.
  std::optional<int64_t> kept_output;

  size_t parameters() const { return static_cast<size_t>(chain.first_parameter(chain.size())); }
  // Returns where the output lies: at `otherwise`, unless it is kept.
  Tensor Output(const LayerArgs& args, const Tensor& otherwise) const;
  // Returns the branch's part of the whole layer's arguments.
  LayerArgs Args(const LayerArgs& args) const;
  // Adds its areas, of which only scratch is shared with other branches, and the last uses of x and
  // dy, to what the whole layer declares. `output_bytes`: of y.
  void PlaceIn(partition::LayerMemory& memory, int64_t output_bytes);
};

// Prepares the layers of a branch, and adds to the whole layer's spec what they declare, except for
// memory. Parameters get names such as "0.weight" after `prefix`; layers are numbered from
// `first_index` on among all inside the whole layer.
absl::StatusOr<Branch> PrepareBranch(absl::Span<const LayerFactory> layers, LayerContext context,
                                     int first_index, const std::string& prefix, LayerSpec& spec);

// What a branch does after each of its layers.
inline absl::Status AfterNoLayer(int) { return absl::OkStatus(); }

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCH_H_
