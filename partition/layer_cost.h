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

// Bytes of one layer at the micro-batch size of the plan. A field that sums over several tensors
// sums their sizes each rounded up by AlignTensor.
struct LayerMemory {
  int64_t parameter_bytes = 0;  // the gradients take as much again
  int64_t optimizer_bytes = 0;
  int64_t other_resident_bytes = 0;  // also kept for the whole run, like tables of norms
  int64_t input_bytes = 0;           // activation in, per micro-batch, not rounded
  int64_t output_bytes = 0;          // activation out, per micro-batch, not rounded
  // Outputs of earlier layers that layers after this one still read: a stage that ends here hands
  // them on beside its own output. 0 throughout a chain; see InOrder (profile.h).
  int64_t passing_bytes = 0;
  int64_t stash_bytes = 0;           // what the layer itself keeps from F until B
  int64_t weight_stash_bytes = 0;    // ... from F until W
  int64_t gradient_stash_bytes = 0;  // ... from B until W
  int64_t workspace_bytes = 0;       // scratch within one operation
  schedule::LastUse input_last_use = schedule::LastUse::kBackwardWeight;
  schedule::LastUse output_last_use = schedule::LastUse::kForward;
  schedule::LastUse output_gradient_last_use = schedule::LastUse::kBackwardInput;

  friend bool operator==(const LayerMemory&, const LayerMemory&) = default;
};

// All that a planner knows of one layer.
struct LayerCost {
  std::string name = {};
  int64_t parameters = 0;  // count
  // Per micro-batch, except the step.
  double forward_ns = 0;
  double backward_input_ns = 0;
  double backward_weight_ns = 0;
  double step_ns = 0;  // the optimizer's update, once per batch
  double flops = 0;    // of F, B and W together; 0: unknown
  LayerMemory memory = {};
  // What would be kept from F until B in place of stash_bytes and weight_stash_bytes if the layer
  // did F again within B. Absent: it cannot.
  std::optional<int64_t> recompute_stash_bytes = std::nullopt;
  // How much the times varied when they were measured, as a share of them; 0: unknown. For people.
  double spread = 0;

  // Time of one batch of `micro_batches`, in ns.
  double batch_ns(int micro_batches) const {
    return micro_batches * (forward_ns + backward_input_ns + backward_weight_ns) + step_ns;
  }

  friend bool operator==(const LayerCost&, const LayerCost&) = default;
};

std::vector<LayerMemory> MemoryOf(absl::Span<const LayerCost> layers);

// The same layer, repeating F within B: B takes longer by the time of F, its scratch grows by what
// F left behind, and what W reads of that is kept from B on. The layer's input is kept until B.
// Pre-condition: it can (recompute_stash_bytes).
LayerCost Recomputed(const LayerCost& layer);
// Its memory alone.
LayerMemory RecomputedMemory(const LayerCost& layer);

// InvalidArgument, naming layer and field, if a time is negative or not finite, or a count or size
// is negative or above schedule::kMaxSizeBytes.
absl::Status CheckLayers(absl::Span<const LayerCost> layers);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_LAYER_COST_H_
