#ifndef STAGECOACH_PARTITION_SEARCH_PLANNER_H_
#define STAGECOACH_PARTITION_SEARCH_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "partition/cost/cluster.h"
#include "partition/cost/model_option.h"
#include "partition/cost/profile.h"
#include "partition/plan/plan.h"
#include "partition/plan/plan_evaluation.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// The value of PlannerRequest::schedule that leaves the schedule open.
inline constexpr char kAnySchedule[] = "auto";

struct KnownBoundaries;  // boundaries.h

// The subject of a plan, and which parts are fixed. Everything else is searched.
struct PlannerRequest {
  Profile profile;
  Cluster cluster;
  // Samples of one step, over all replicas: micro-batches * size of each. >= 1.
  int64_t batch_rows = 1;

  std::string schedule = kAnySchedule;  // or a name of schedule::Generators()
  // Instead of a name: the schedule of each replica, to train with.
  std::optional<schedule::Schedule> given = {};
  std::optional<int> chunks = {};         // stages per rank
  std::optional<int> micro_batches = {};  // of all replicas; unset: one for each profile size
  std::optional<int> replicas = 1;        // unset: all numbers that divide the devices
  // See Replication. Unset: as many as replicas; otherwise replicas must divide it.
  std::optional<int> gradient_blocks = {};
  // See Replication; used if there are several replicas.
  bool shards_optimizer = false;
  ReductionKind reduction = ReductionKind::kTree;
  // Layers that can (LayerCost::recompute_stash_bytes) may repeat F where memory is short.
  bool may_recompute = true;
  bool recomputes_all = false;      // all of these layers repeat F, whatever the memory
  double offload = 0.0;             // Plan::offload
  bool offloads_optimizer = false;  // Replication's
  PlanObjective objective = PlanObjective::kStep;
  // Shared by searches over the same profile, whatever their devices; null: nothing is shared.
  std::shared_ptr<KnownBoundaries> boundaries = nullptr;
  // FindPlan with options may leave out devices where that is faster.
  bool may_leave_devices = false;
  // Plans that are known, such as the answers to harder requests: the answer is no slower than any
  // of them that is a plan for this request and fits (PlanEvaluation::start). The search also
  // improves them, where it could have found them: those that keep the profile's order of layers.
  std::vector<Plan> starts = {};
};

// When to end a search early, and whom to tell of its progress.
struct SearchLimits {
  absl::Time deadline = absl::InfiniteFuture();
  // Called often, from the searching thread. Empty: never.
  std::function<bool()> is_cancelled = {};
  // Called whenever a plan is the best so far, with its objective; may be empty.
  std::function<void(double objective_ns)> on_better = {};
  // Continue when all combinations have been considered: in rounds that improve the best plans
  // (rounds.h), until the gap is small, or until they gain nothing: before a deadline only where
  // the gap is below 5 %.
  bool improves = false;
};

// Finds the best plan, and evaluates it. Candidates are all combinations of what the request leaves
// open; each has a lower bound, and in the order of these bounds each is cut (FindBestCut) and
// simulated as the runtime performs it, until no bound is below the best. If a candidate has at
// most kMaxEnumeratedCuts cuts, all of them are considered, so that the answer is that of
// exhaustive search; otherwise PlanEvaluation::lower_bound_ns says how far it can be from that.
// Schedule "auto" also searches orders of its own (schedule/search/automatic.h) for the best of
// them. Deterministic except for PlanEvaluation::planning, unless it was cut short.
//
// At the limits the search ends with the best plan so far (PlanEvaluation::is_cut_short). Its lower
// bound still holds: it covers whatever was not visited. One step of the search, which takes some
// hundredths of a second, is completed, and the evaluation is written.
//
// InvalidArgument: those of CheckProfile and CheckCluster; a schedule or number that is refused for
// every shape, with the reason; a batch that does not divide; replicas or gradient blocks that
// CheckReplication refuses. ResourceExhausted: nothing fits; the message says by how much, where,
// and what the cheapest change would be, and contains the table of the plan that comes closest.
// Cancelled or DeadlineExceeded: the limits came before any plan.
absl::StatusOr<PlanEvaluation> FindPlan(const PlannerRequest& request,
                                        const SearchLimits& limits = {});

inline constexpr size_t kMostSmaller = 8;

// Finds the best plan of all options, each in place of the request's own profile and cluster. The
// evaluation's lower bound holds for all options, and its runner-up may be of another one. Options
// are planned in the order of what their layers alone take, each with an equal part of the
// remaining time; those that cannot beat the best plan so far are left out. If there are several,
// the best is improved (SearchLimits::improves) afterwards.
//
// If devices may be left out, the best option (the one with the least bound, if none has a plan) is
// planned again on the first k devices, for each k, and without the slowest: far fewer pay off than
// a bound admits, so at most kMostSmaller of them are tried, those with a start and with the least
// bounds first. PlanEvaluation::left_out says which devices were left out.
//
// Pre-condition: there is an option. If none has a plan, returns the error of the first, or for
// several options its kind with the first line of each.
absl::StatusOr<PlanEvaluation> FindPlan(const PlannerRequest& request,
                                        absl::Span<const ModelOption> options,
                                        const SearchLimits& limits = {});

struct BoundOptions {
  // No bound needs to exceed it.
  double enough_ns = std::numeric_limits<double>::infinity();
  // Whether a named schedule of more than some thousand passes is made for its bound, which tells
  // how many micro-batches are in flight. It takes some hundredths of a second.
  bool makes_long_schedules = false;
};

// Returns an objective that no plan for the request can beat, without any plan: the best known
// bound, or `enough_ns` if that is less, or what was found within the limits. InvalidArgument:
// those of FindPlan.
absl::StatusOr<double> JointLowerBoundNs(const PlannerRequest& request,
                                         const SearchLimits& limits = {},
                                         const BoundOptions& options = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PLANNER_H_
