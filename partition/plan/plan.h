#ifndef STAGECOACH_PARTITION_PLAN_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/cost/replication.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// How a model is spread over devices, and in which order they work: stage i has the layers first(i)
// to last(i) and is on rank schedule.rank_of(i). A rank is a device; with replicas, it is a group
// of devices, one per replica: they hold the same parameters, and each performs the rank's list
// with its own micro-batches. With tensor parts, as many devices take the place of each, and
// perform its list together: each holds and computes a part of the layers that are cut.
struct Plan {
  std::vector<int> first_layer;  // of each stage; ascending, starts with 0
  int num_layers = 0;
  int64_t micro_batch_rows = 1;
  // The schedule of each replica; compute or lowered. With only F, the plan predicts and cannot
  // train.
  schedule::Schedule schedule;
  Replication replication = {};
  int tensor_parts = 1;              // a power of two
  std::vector<int> recomputed = {};  // layers that repeat F within B; ascending
  // The share of the stashes that are moved to the host's memory while they are not needed
  // (schedule::LoweringOptions): 0 to 1. For a schedule that moves some itself: 0.
  double offload = 0.0;
  // The order of the layers that is cut, if the profile is a graph; empty: as they are.
  std::vector<int> order = {};

  int num_stages() const { return static_cast<int>(first_layer.size()); }
  int num_ranks() const { return schedule.num_ranks(); }
  int replicas() const { return replication.replicas; }
  int devices_of_rank() const { return replicas() * tensor_parts; }
  // Returns the first device: ranks take devices in turn, with the replicas of a rank in a row, and
  // the parts of each.
  int first_device_of(schedule::Rank rank) const { return rank.value() * devices_of_rank(); }
  int num_devices() const { return num_ranks() * devices_of_rank(); }
  bool trains() const { return schedule.HasBackward(); }
  bool moves_stashes() const { return offload > 0 || schedule.MovesStashes(); }
  int first(int stage) const { return first_layer[static_cast<size_t>(stage)]; }
  int last(int stage) const {
    return stage + 1 < num_stages() ? first(stage + 1) - 1 : num_layers - 1;
  }
  // Returns the stage of the layer, which is in [0, num_layers).
  int stage_of(int layer) const;
  int micro_batches() const { return schedule.num_micro_batches * replicas(); }  // of all replicas
  int64_t batch_rows() const { return micro_batches() * micro_batch_rows; }

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Returns InvalidArgument unless the stages are non-empty, ascending and cover `num_layers` layers,
// the counts are positive, the schedule has that many stages, at least one on every rank, the
// replicas can divide the micro-batches (CheckReplication), the tensor parts are a power of two,
// recomputed layers and order refer to that many layers, none is recomputed and nothing moved to
// the host without a backward pass, and `offload` is in its range.
absl::Status CheckPlan(const Plan& plan);

// Returns InvalidArgument if the schedule has no backward actions.
absl::Status CheckTrains(const schedule::Schedule& schedule);

// The schedules that the ranks of a plan perform, lowered and proved: the plan's own, and F alone
// under the same placement. A plan that only predicts has the latter twice.
struct LoweredSchedules {
  schedule::Transfers transfers = schedule::Transfers::kSeparate;  // for which they were lowered
  schedule::Schedule training, evaluation;
  schedule::CollectiveMemory collectives;
  Replication replication;
};

// Lowers a plan for transfers of that kind, with the collectives that have memory in `collectives`.
// A schedule that is already lowered is used unchanged, but gets the collectives that it lacks.
// Errors: those of CheckPlan; FailedPrecondition (Lower, Validate) if the plan's schedule cannot be
// performed this way.
absl::StatusOr<LoweredSchedules> LowerPlan(
    const Plan& plan, schedule::Transfers transfers = schedule::Transfers::kSeparate,
    const schedule::CollectiveMemory& collectives = {});
// Does what LowerPlan does for every plan with that schedule, those replicas and that share of
// stashes moved to the host, whatever its cut.
absl::StatusOr<LoweredSchedules> LowerSchedules(const schedule::Schedule& schedule,
                                                const Replication& replication,
                                                schedule::Transfers transfers,
                                                const schedule::CollectiveMemory& collectives,
                                                double offload = 0.0);
// Returns OK if the plan's schedule can be lowered and performed; else an error of LowerPlan.
absl::Status CheckPerformable(const Plan& plan);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PLAN_H_
