#ifndef STAGECOACH_PARTITION_BOUNDS_CANDIDATE_BOUNDS_H_
#define STAGECOACH_PARTITION_BOUNDS_CANDIDATE_BOUNDS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/profile.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/plan/plan_evaluation.h"

// Lower bounds of the time of a candidate's plans, before any of them is made; in ns.
// docs/planner.md has the proofs. `speeds`: those of the ranks, each that of its slowest replica.
// `micro_batches`: of each replica. None of them counts the sums of gradients over replicas.
namespace stagecoach::partition {

// Returns, for each layer, the time of F and B of all layers that it needs, directly or not: those
// Fs come before its first F, and those Bs after its last B, one after the other whatever the
// stages. `edges`: of a graph; none: every layer needs the one before it. For a graph of more than
// kMaxClosedLayers layers: 0.
std::vector<double> NeededNs(const LayerTable& table, absl::Span<const Edge> edges);
inline constexpr int kMaxClosedLayers = 1 << 14;

// Returns the bound for any division of the work among the ranks. `needed_ns`: NeededNs; empty if
// steps overlap, since no work then waits for other work.
double SimpleBoundNs(const LayerTable& table, absl::Span<const double> speeds, int micro_batches,
                     absl::Span<const double> needed_ns);

// Returns the bound for a chain with stage s on rank s: the first pass of a rank waits for those of
// all ranks before it, and their last backward passes follow its own.
absl::StatusOr<double> ChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                    int micro_batches, PlanObjective objective);

// Returns another bound, for a step in which B and W are one operation.
absl::StatusOr<double> FusedChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                         int micro_batches);

// Returns how much rounding the times of stages to whole ns can reduce those of a rank, or of all
// that wait for each other.
double RoundingNs(const LayerTable& table, absl::Span<const double> speeds, int chunks,
                  int micro_batches);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_BOUNDS_CANDIDATE_BOUNDS_H_
