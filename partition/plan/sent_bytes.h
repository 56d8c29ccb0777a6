#ifndef STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
#define STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/tie.h"
#include "partition/plan/compiled_plan.h"
#include "schedule/ir/action.h"

namespace stagecoach::partition {

// The bytes that a device sends in one training step. All devices together receive what they send;
// a single one need not.
struct SentBytes {
  // Sent to devices of its replica and part: activations, gradients, also tied ones, norms,
  // results.
  int64_t to_ranks = 0;
  int64_t to_replicas = 0;  // to devices of its rank: what REDUCE, STEP and RESULTS exchange
  int64_t to_parts = 0;     // to those that perform its list with it: sums of layers, norms

  friend bool operator==(const SentBytes&, const SentBytes&) = default;
};

// Counts the bytes that a device sends. `layers`, `ties`: those of the model.
SentBytes SentBytesOf(const CompiledPlan& plan, absl::Span<const LayerCost> layers,
                      absl::Span<const Tie> ties, schedule::Rank rank, int replica);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
