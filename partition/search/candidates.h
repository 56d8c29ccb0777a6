#ifndef STAGECOACH_PARTITION_SEARCH_CANDIDATES_H_
#define STAGECOACH_PARTITION_SEARCH_CANDIDATES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/bounds/boundaries.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/exact/graph.h"
#include "partition/search/planner.h"
#include "partition/search/search_budget.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// The order in which the layers of a graph are cut; a chain has only the first.
enum class LayerOrder : uint8_t {
  kGiven,            // the profile's
  kLeastBottleneck,  // that of the cut with the fastest slowest stage, whatever the memory
};

// One combination of what a request leaves open, except the cut.
struct Candidate {
  std::string schedule;  // of a generator; "" for the given one
  int chunks = 1;        // stages per rank
  int ranks = 1;
  Replication replication;  // each replica has `ranks` ranks: together all devices
  int micro_batches = 1;    // of all replicas
  int64_t micro_batch_rows = 1;
  LayerOrder order = LayerOrder::kGiven;
  double lower_bound_ns = 0;  // of the objective, whatever the cut

  int num_stages() const { return chunks * ranks; }
  int replicas() const { return replication.replicas; }
  int micro_batches_of_each() const { return micro_batches / replicas(); }
  // Returns true if everything except the schedule and the order of layers is the same.
  bool IsOfShape(const Candidate& other) const {
    return chunks == other.chunks && replication == other.replication &&
           micro_batches == other.micro_batches;
  }
  // Returns true if everything except the order of layers is the same.
  bool IsOfChoice(const Candidate& other) const {
    return schedule == other.schedule && IsOfShape(other);
  }
};

// Multiples of what the devices of a request have; above 1 the request is easier.
struct Relaxation {
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  double memory = 1;
  double links = 1;  // bytes per second; latencies are divided by it
  // The memory attributed to a device without a limit; 0: it has no limit.
  int64_t unlimited_bytes = 0;

  friend bool operator==(const Relaxation&, const Relaxation&) = default;
};

// All combinations for a request, and what it takes to judge them. Thread-compatible.
class CandidateSpace {
 public:
  // `request` must pass the checks of FindPlan. Both must outlive the space. `options` say
  // how good the candidates' bounds are to be. InvalidArgument: there is no combination; says why.
  static absl::StatusOr<CandidateSpace> Create(const PlannerRequest& request, SearchBudget& budget,
                                               const BoundOptions& options = {});

  // Ascending lower bound; equal ones with the given order of layers first.
  const std::vector<Candidate>& candidates() const { return candidates_; }

  // Returns InvalidArgument or FailedPrecondition if the schedule refuses the shape.
  absl::StatusOr<schedule::Schedule> ScheduleOf(const Candidate& candidate) const;

  // Returns a candidate's pipeline under its own or another schedule of its shape, on devices that
  // are `relaxation` better than the request's own. Cancelled or DeadlineExceeded: the budget was
  // reached before its order of layers was known.
  absl::StatusOr<CutEvaluator> EvaluatorOf(const Candidate& candidate,
                                           const schedule::Schedule& schedule,
                                           const Relaxation& relaxation = {});

  // Returns the bound for any order of work on the candidate's ranks; or, unless null, for that
  // schedule.
  absl::StatusOr<double> LowerBoundNs(const Candidate& candidate,
                                      const schedule::Schedule* schedule = nullptr);

  // Returns the candidate's order of a graph's layers; empty for a chain. Errors: those of
  // EvaluatorOf.
  absl::StatusOr<std::vector<int>> OrderOf(const Candidate& candidate);

 private:
  CandidateSpace(const PlannerRequest& request, SearchBudget& budget, double enough_ns)
      : request_(request), budget_(budget), enough_ns_(enough_ns) {}

  absl::Status Enumerate();
  // Returns the part of the bound that ignores messages and memory, before rounding.
  absl::StatusOr<double> WorkBoundNs(const Candidate& candidate, bool is_fused);
  // Returns PeakStashes under the schedule, as it is performed.
  std::vector<int> InFlight(const schedule::Schedule& schedule) const;
  // Returns the other part, if that is above `at_least_ns`. The same for any number of stages per
  // rank above 1, unless there is a schedule.
  double StepBoundNs(const Candidate& candidate, const schedule::Schedule* schedule, bool is_fused,
                     double at_least_ns);
  Cluster RelaxedCluster(const Relaxation& relaxation) const;
  absl::StatusOr<const GraphCut*> GraphCutOf(const Candidate& candidate);
  std::vector<double> SpeedsOf(const Candidate& candidate) const;
  // Returns true if stage s is on rank s, and no other is.
  bool IsInOrder(const Candidate& candidate) const;
  // Adds the requested schedules, with that many replicas.
  absl::Status AddShapes(int replicas);
  absl::Status AddShape(int replicas, int64_t micro_batch_rows);
  absl::Status Add(Candidate candidate);
  // Return the layers in the order in which they are cut, and in that of the profile.
  absl::StatusOr<std::shared_ptr<const LayerTable>> LayersOf(const Candidate& candidate);
  std::shared_ptr<const LayerTable> GivenLayersOf(const Candidate& candidate);

  const PlannerRequest& request_;
  SearchBudget& budget_;
  const double enough_ns_;
  std::vector<Candidate> candidates_;
  absl::Status refusal_;  // the first reason for which a combination was left out
  // Keyed by micro-batch size, micro-batches of each replica, and replicas.
  std::map<std::tuple<int64_t, int, int>, std::shared_ptr<const LayerTable>> tables_;
  // The same with the order of layers, and the number of stages that it is for.
  std::map<std::tuple<int64_t, int, int, LayerOrder>,
           std::pair<int, std::shared_ptr<const LayerTable>>>
      ordered_tables_;
  // Keyed by replicas, stages, and micro-batch size; and the schedule, if it is known.
  std::map<std::tuple<int, int, int64_t>, GraphCut> graph_cuts_;
  std::map<std::tuple<int, int, int64_t, std::string>, double> bounds_;
  std::map<std::tuple<int, int64_t, bool>, double> step_bounds_;  // by replicas and size; in order
  std::shared_ptr<KnownBoundaries> boundaries_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CANDIDATES_H_
