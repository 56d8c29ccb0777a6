#ifndef STAGECOACH_PARTITION_COST_LAYER_COST_H_
#define STAGECOACH_PARTITION_COST_LAYER_COST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// Tensors inside a stage's areas start at multiples of this.
inline constexpr int64_t kTensorAlignment = 64;
constexpr int64_t AlignTensor(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Some operators of F that a layer repeats within B, instead of all of F: their time and flops, and
// the part of the layer's stashes that they produce.
struct RepeatedPart {
  double forward_ns = 0;
  double flops = 0;
  int64_t stash_bytes = 0;         // part of LayerMemory::stash_bytes
  int64_t weight_stash_bytes = 0;  // part of LayerMemory::weight_stash_bytes

  friend bool operator==(const RepeatedPart&, const RepeatedPart&) = default;
};

// The part that F leaves for B and for W in a layer that repeats F within B. It is dropped after F,
// and exists again from B on.
struct DroppedStash {
  int64_t stash_bytes = 0;         // part of LayerMemory::workspace_bytes, at its end
  int64_t weight_stash_bytes = 0;  // part of LayerMemory::gradient_stash_bytes, at its end

  friend bool operator==(const DroppedStash&, const DroppedStash&) = default;
};

// Bytes of one layer at the micro-batch size of the plan. A field that sums over several tensors
// sums their sizes each rounded up by AlignTensor.
struct LayerMemory {
  int64_t parameter_bytes = 0;  // of those that are trained; the gradients take the same again
  int64_t optimizer_bytes = 0;
  int64_t averaged_bytes = 0;  // part of parameter_bytes for which the optimizer keeps no state
  int64_t other_resident_bytes = 0;  // also kept for the whole run, like tables of norms
  // Part of those: rounded copies of the parameters, except the averaged ones, which the layer
  // reads in their place. Without training they are all that is kept.
  int64_t working_bytes = 0;
  // Another part of those: parameters that are frozen, as layers read them.
  int64_t frozen_bytes = 0;
  int64_t cache_bytes = 0;   // likewise, for earlier positions when positions come one by one
  int64_t input_bytes = 0;   // activation in, per micro-batch, not rounded
  int64_t output_bytes = 0;  // activation out, per micro-batch, not rounded
  // Outputs that later layers read beyond the next one: a stage that ends here passes them on along
  // with its own output. 0 without skips; for a graph, see InOrder (profile.h).
  int64_t passing_bytes = 0;
  // Size of those when the stage continues after this layer: they lie in an area of its workspace.
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

// What a device exchanges within a pass with those that perform its stage with it
// (Plan::tensor_parts).
struct PartExchange {
  int64_t bytes = 0;  // that it sends
  // How often it exchanges messages with log2(devices) others, one after the other: twice for a
  // sum, which is scattered and gathered, and once for what is gathered alone.
  int rounds = 0;

  PartExchange& operator+=(const PartExchange& other) {
    bytes += other.bytes;
    rounds += other.rounds;
    return *this;
  }
  friend bool operator==(const PartExchange&, const PartExchange&) = default;
};

// Everything that a planner knows of one layer.
struct LayerCost {
  std::string name = {};
  // Count of those that the optimizer updates, excluding copies of other layers' parameters (Tie).
  int64_t parameters = 0;
  // Per micro-batch, except the step.
  double forward_ns = 0;
  double backward_input_ns = 0;
  double backward_weight_ns = 0;
  double shared_backward_ns = 0;  // the part of both B and W that BW does once; at most either
  double step_ns = 0;             // the optimizer's update, once per batch
  double flops = 0;               // of F, B and W together; 0: unknown
  // Within F, within B, within B where the gradient of the input is wanted, and within W, whose
  // bytes do not depend on the samples. The times above include what that takes on devices of one
  // machine; see AddExchangeTimes (device_groups.h).
  PartExchange forward_exchange, backward_exchange, input_gradient_exchange, weight_exchange;
  // True of what comes before the first layer that is trained, from a frozen layer on: the first
  // stage performs no B for its layers up to the last of them, and wants no gradient of their
  // output.
  bool skips_backward = false;
  LayerMemory memory = {};
  // The bytes kept from F until B instead of stash_bytes and weight_stash_bytes if the layer
  // repeated F within B. Absent: it cannot.
  std::optional<int64_t> recompute_stash_bytes = std::nullopt;
  // Set by SetRepeated if only some operators are to be repeated. Their results are dropped, and
  // those of all others are kept: recompute_stash_bytes is then what remains of the stashes.
  std::optional<RepeatedPart> repeated = std::nullopt;
  // Variation of the measured times, as a share of them; 0: unknown. For people.
  double spread = 0;

  double fused_backward_ns() const {  // BW
    return backward_input_ns + backward_weight_ns - shared_backward_ns;
  }
  // Returns the time that repeating F adds to B.
  double again_ns() const { return repeated.has_value() ? repeated->forward_ns : forward_ns; }
  // Returns the time of one batch of `micro_batches`, in ns; longer where B and W are apart and
  // share work.
  double batch_ns(int micro_batches) const {
    return micro_batches * (forward_ns + fused_backward_ns()) + step_ns;
  }

  friend bool operator==(const LayerCost&, const LayerCost&) = default;
};

std::vector<LayerMemory> MemoryOf(absl::Span<const LayerCost> layers);

// Sets recompute_stash_bytes and repeated. Pre-condition: the part is within the layer's stashes.
void SetRepeated(const RepeatedPart& part, LayerCost& layer);

// Returns the same layer, repeating F (or LayerCost::repeated) within B: B takes longer by that
// time, its scratch grows by what that produces for B, and what it produces for W is kept from B
// on. The layer's input is kept until B. Pre-condition: the layer can repeat F
// (recompute_stash_bytes).
LayerCost Recomputed(const LayerCost& layer);
// Returns the memory alone, of a layer that would keep `recompute_stash_bytes`, repeating all of F.
LayerMemory RecomputedMemory(const LayerMemory& layer, int64_t recompute_stash_bytes);
LayerMemory RecomputedMemory(const LayerCost& layer);

// Returns InvalidArgument, naming layer and field, if a time is negative, NaN or infinite, or a
// count or size is negative or above schedule::kMaxSizeBytes.
absl::Status CheckLayers(absl::Span<const LayerCost> layers);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_LAYER_COST_H_
