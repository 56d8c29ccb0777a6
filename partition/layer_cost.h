#ifndef STAGECOACH_PARTITION_LAYER_COST_H_
#define STAGECOACH_PARTITION_LAYER_COST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/memory.h"

namespace stagecoach::partition {

// Tensors inside a stage's areas start at multiples of this.
inline constexpr int64_t kTensorAlignment = 64;
constexpr int64_t AlignTensor(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Of a layer that does F again within B: what F leaves for B and for W. It is dropped after F, and
// there again from B on.
struct DroppedStash {
  int64_t stash_bytes = 0;         // part of LayerMemory::workspace_bytes, at its end
  int64_t weight_stash_bytes = 0;  // part of LayerMemory::gradient_stash_bytes, at its end

  friend bool operator==(const DroppedStash&, const DroppedStash&) = default;
};

// Bytes of one layer at the micro-batch size of the plan. A field that sums over several tensors
// sums their sizes each rounded up by AlignTensor.
struct LayerMemory {
  int64_t parameter_bytes = 0;  // the gradients take as much again
  int64_t optimizer_bytes = 0;
  int64_t averaged_bytes = 0;        // of parameter_bytes: the optimizer keeps no state of them
  int64_t other_resident_bytes = 0;  // also kept for the whole run, like tables of norms
  // Of those: rounded copies of the parameters, but for the averaged ones, which the layer reads in
  // their place. Where nothing is trained, there is nothing but them.
  int64_t working_bytes = 0;
  int64_t cache_bytes = 0;   // likewise, of earlier positions, where they come one by one
  int64_t input_bytes = 0;   // activation in, per micro-batch, not rounded
  int64_t output_bytes = 0;  // activation out, per micro-batch, not rounded
  // Outputs that later layers read past the next one: a stage that ends here hands them on beside
  // its own output. 0 without skips; of a graph, see InOrder (profile.h).
  int64_t passing_bytes = 0;
  // Where those lie while the stage goes on after this layer: in an area of its workspace.
  int64_t skip_area_bytes = 0;
  int64_t stash_bytes = 0;           // what the layer itself keeps from F until B
  int64_t weight_stash_bytes = 0;    // ... from F until W
  int64_t gradient_stash_bytes = 0;  // ... from B until W
  int64_t workspace_bytes = 0;       // scratch within one operation
  schedule::LastUse input_last_use = schedule::LastUse::kBackwardWeight;
  schedule::LastUse output_last_use = schedule::LastUse::kForward;
  schedule::LastUse output_gradient_last_use = schedule::LastUse::kBackwardInput;
  std::optional<DroppedStash> dropped = std::nullopt;  // set by RecomputedMemory alone

  friend bool operator==(const LayerMemory&, const LayerMemory&) = default;
};

// All that a planner knows of one layer.
struct LayerCost {
  std::string name = {};
  // Count of those that the optimizer updates, without copies of those of other layers (Tie).
  int64_t parameters = 0;
  // Per micro-batch, except the step.
  double forward_ns = 0;
  double backward_input_ns = 0;
  double backward_weight_ns = 0;
  double shared_backward_ns = 0;  // of both B and W, what BW does once; at most either
  double step_ns = 0;             // the optimizer's update, once per batch
  double flops = 0;               // of F, B and W together; 0: unknown
  LayerMemory memory = {};
  // What would be kept from F until B in place of stash_bytes and weight_stash_bytes if the layer
  // did F again within B. Absent: it cannot.
  std::optional<int64_t> recompute_stash_bytes = std::nullopt;
  // How much the times varied when they were measured, as a share of them; 0: unknown. For people.
  double spread = 0;

  double fused_backward_ns() const {  // BW
    return backward_input_ns + backward_weight_ns - shared_backward_ns;
  }
  // Time of one batch of `micro_batches`, in ns; longer where B and W are apart and share work.
  double batch_ns(int micro_batches) const {
    return micro_batches * (forward_ns + fused_backward_ns()) + step_ns;
  }

  friend bool operator==(const LayerCost&, const LayerCost&) = default;
};

std::vector<LayerMemory> MemoryOf(absl::Span<const LayerCost> layers);

// The same layer, repeating F within B: B takes longer by the time of F, its scratch grows by what
// F left behind, and what W reads of that is kept from B on. The layer's input is kept until B.
// Pre-condition: it can (recompute_stash_bytes).
LayerCost Recomputed(const LayerCost& layer);
// Its memory alone: of a layer that would keep `recompute_stash_bytes`.
LayerMemory RecomputedMemory(const LayerMemory& layer, int64_t recompute_stash_bytes);
LayerMemory RecomputedMemory(const LayerCost& layer);

// InvalidArgument, naming layer and field, if a time is negative or not finite, or a count or size
// is negative or above schedule::kMaxSizeBytes.
absl::Status CheckLayers(absl::Span<const LayerCost> layers);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_LAYER_COST_H_
