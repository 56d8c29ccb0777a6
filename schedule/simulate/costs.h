#ifndef STAGECOACH_SCHEDULE_SIMULATE_COSTS_H_
#define STAGECOACH_SCHEDULE_SIMULATE_COSTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::schedule {

// How long one stage's actions take, per micro-batch except for the reduction and the step.
struct StageTimes {
  int64_t forward_ns = 0;          // F
  int64_t backward_input_ns = 0;   // B
  int64_t backward_weight_ns = 0;  // W
  int64_t backward_ns = 0;         // BW as one operation
  int64_t reduce_ns = 0;           // gradients over replicas, once; concurrent with everything else
  int64_t step_ns = 0;             // the optimizer, once
  int64_t output_bytes = 0;        // of the activation it sends to the next stage
  int64_t input_gradient_bytes = 0;  // of the gradient it sends to the previous stage
  int64_t host_copy_bytes = 0;       // of the stash that an OFFLOAD or a FETCH moves

  friend bool operator==(const StageTimes&, const StageTimes&) = default;
};

// How long the collectives take once all ranks of their group have reached them.
struct CollectiveTimes {
  int64_t ties_ns = 0;     // TIES
  int64_t norms_ns = 0;    // NORM
  int64_t results_ns = 0;  // RESULTS

  // Pre-condition: IsCollective(op).
  int64_t of(Op op) const {
    if (op == Op::kSumTies) return ties_ns;
    return op == Op::kExchangeNorms ? norms_ns : results_ns;
  }

  friend bool operator==(const CollectiveTimes&, const CollectiveTimes&) = default;
};

// A connection in one direction: a message of n bytes takes latency_ns + n / bytes_per_second.
struct Link {
  int64_t latency_ns = 0;
  double bytes_per_second = 0.0;  // 0: infinitely fast

  int64_t TransferNs(int64_t bytes) const;

  friend bool operator==(const Link&, const Link&) = default;
};

// The connection between each rank's device and the host's memory, the same in both directions.
struct HostLink {
  Link link;
  // True if copies keep the rank busy, as on a CPU device; otherwise copy engines make them.
  bool occupies_rank = false;

  friend bool operator==(const HostLink&, const HostLink&) = default;
};

// Everything that a simulation knows besides the order.
struct Costs {
  std::vector<StageTimes> stages;  // index: stage
  // One link for every pair of ranks; or one for each pair, at sender * ranks + receiver; or none:
  // transfers take no time.
  std::vector<Link> links;
  HostLink host_link;
  CollectiveTimes collectives;
  // Duration of an overlapped F and B (Action::overlaps_next), as a share of their sum; in (0, 1].
  // No pair is shorter than the longer of the two.
  double overlap_share = 1.0;
  // True if the step is part of the last micro-batch's W or BW, each layer being updated as soon as
  // its gradients are complete. STEP then takes no time of its own.
  bool updates_in_backward = false;
  // Sizes, for peaks in bytes (memory_plan.h); index: stage. Empty if they are unknown.
  std::vector<StageMemory> memory;
  CollectiveMemory collective_memory;

  const StageTimes& of(StageId stage) const { return stages[static_cast<size_t>(stage.value())]; }
  Link LinkBetween(Rank from, Rank to, int num_ranks) const;

  friend bool operator==(const Costs&, const Costs&) = default;
};

// No time may exceed this (about 12 days), so that sums of a schedule's actions cannot overflow.
inline constexpr int64_t kMaxTimeNs = int64_t{1} << 50;

// Returns InvalidArgument, naming stage or link and field, unless there is one entry per stage of
// the schedule, the number of links fits, no time or size is negative or excessive, and the overlap
// is in its range.
absl::Status CheckCosts(const Schedule& schedule, const Costs& costs);

// How long one device takes for one micro-batch, over all its stages.
struct DeviceTimes {
  int64_t forward_ns = 0;
  int64_t backward_input_ns = 0;
  int64_t backward_weight_ns = 0;
};

// Returns the costs of stages on equal devices: each of a rank's stages takes an equal share of the
// device's times (to the ns; the shares sum to them exactly), BW takes B + W, and every message
// `latency_ns`. `rank_of_stage`: index stage.
Costs UniformCosts(const std::vector<Rank>& rank_of_stage, const DeviceTimes& device,
                   int64_t latency_ns);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SIMULATE_COSTS_H_
