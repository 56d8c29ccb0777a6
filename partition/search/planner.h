#ifndef STAGECOACH_PARTITION_SEARCH_PLANNER_H_
#define STAGECOACH_PARTITION_SEARCH_PLANNER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "partition/cluster.h"
#include "partition/plan/receipt.h"
#include "partition/profile.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// The value of PlannerRequest::schedule that leaves the schedule open.
inline constexpr char kAnySchedule[] = "auto";

// What to plan, and what of it is settled. Everything that is not is searched.
struct PlannerRequest {
  Profile profile;
  Cluster cluster;
  // Rows of one step, over all replicas: micro-batches * rows of each. >= 1.
  int64_t batch_rows = 1;

  std::string schedule = kAnySchedule;  // or a name of schedule::Generators()
  // In place of a name: one to train with, of each replica.
  std::optional<schedule::Schedule> given = {};
  std::optional<int> chunks = {};         // stages per rank
  std::optional<int> micro_batches = {};  // of all replicas; else one for each size of the profile
  std::optional<int> replicas = 1;        // unset: all powers of two that divide the devices
  // Replication has the same. Unset: as many as replicas; else replicas must divide it.
  std::optional<int> gradient_blocks = {};
  // Replication has the same, where there are several replicas.
  bool shards_optimizer = false;
  ReductionKind reduction = ReductionKind::kTree;
  // Whether layers that can (LayerCost::recompute_stash_bytes) may do F again where memory is
  // short.
  bool may_recompute = true;
  bool recomputes_all = false;  // all of these layers do F again, whatever the memory
  PlanObjective objective = PlanObjective::kStep;
};

// When a search ends though it is not done, and who is told of its progress.
struct SearchLimits {
  absl::Time deadline = absl::InfiniteFuture();
  // Asked often, from the thread that searches. Empty: never.
  std::function<bool()> is_cancelled = {};
  // Called whenever a plan is the best so far, with its objective; may be empty.
  std::function<void(double objective_ns)> on_better = {};
};

// The best plan found, and its receipt. Candidates are all combinations of what the request leaves
// open; each has a lower bound, and in the order of these bounds each is cut
// (FindBestCut) and simulated as the runtime performs it, until no bound is below the best. Where a
// candidate has at most kMaxEnumeratedCuts cuts all of them are considered, so that the answer is
// that of exhaustive search; elsewhere Receipt::lower_bound_ns says how far it can be from that.
// Schedule "auto" also searches orders of its own (schedule/automatic.h) for the best of them.
// Deterministic but for Receipt::planning, unless it was cut short.
//
// At the limits the search ends with the best plan so far (Receipt::is_cut_short). Its lower bound
// holds all the same: it counts whatever was not looked at. One step of the search, which takes
// some hundredths of a second, is completed, and the receipt is written.
//
// InvalidArgument: those of CheckProfile and CheckCluster; a schedule or number that is refused for
// every shape, with the reason; a batch that does not divide; replicas or gradient blocks that
// CheckReplication refuses. ResourceExhausted: nothing fits; the message says by how much, where,
// and what the cheapest change would be, and holds the table of the plan that comes closest.
// Cancelled or DeadlineExceeded: the limits came before any plan.
absl::StatusOr<Receipt> PlanJointly(const PlannerRequest& request, const SearchLimits& limits = {});

// The objective that no plan for the request can beat, from what its layers take alone, whatever
// the memory. InvalidArgument: those of PlanJointly.
absl::StatusOr<double> JointLowerBoundNs(const PlannerRequest& request);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PLANNER_H_
