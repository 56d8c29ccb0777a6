#ifndef STAGECOACH_PARTITION_SEARCH_CANDIDATE_BOUNDS_H_
#define STAGECOACH_PARTITION_SEARCH_CANDIDATE_BOUNDS_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/plan/receipt.h"
#include "partition/search/pipeline.h"

// Lower bounds of what a candidate's plans take, before any of them is made; in ns. docs/planner.md
// has the proofs. `speeds`: of the ranks, each that of its slowest replica. `micro_batches`: of
// each replica. None of them counts the sums of gradients over replicas.
namespace stagecoach::partition {

// The bound for any division of the work among the ranks. With `is_in_turn` it includes what must
// be done in sequence: the micro-batches in each layer, after the layers before it forward and
// before them backward. (Not for a graph, where no layer comes before another in every cut.)
double SimpleBoundNs(const LayerTable& table, absl::Span<const double> speeds, int micro_batches,
                     bool is_in_turn);

// The bound for a chain with stage s on rank s: the first pass of a rank waits for those of all
// ranks before it, and their last backward passes follow its own.
absl::StatusOr<double> ChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                    int micro_batches, PlanObjective objective);

// Another one for a step in which B and W are one operation.
absl::StatusOr<double> FusedChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                         int micro_batches);

// What rounding the times of stages to whole ns can take away from those of a rank, or of all that
// wait for each other.
double RoundingNs(const LayerTable& table, absl::Span<const double> speeds, int chunks,
                  int micro_batches);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CANDIDATE_BOUNDS_H_
