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
#include "partition/exact/graph.h"
#include "partition/search/pipeline.h"
#include "partition/search/planner.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// One combination of what a request leaves open, but for the cut.
struct Candidate {
  std::string schedule;  // of a generator; "" for the one that was given
  int chunks = 1;        // stages per rank
  int micro_batches = 1;
  int64_t micro_batch_rows = 1;
  std::vector<int> replicas;  // devices of each rank; their sum is that of the cluster
  double lower_bound_ns = 0;  // of the objective, whatever the cut

  int num_ranks() const { return static_cast<int>(replicas.size()); }
  int num_stages() const { return chunks * num_ranks(); }
};

// All combinations for a request, and what is needed to judge them. Thread-compatible.
class CandidateSpace {
 public:
  // `request` must outlive the space and pass the checks of PlanJointly. InvalidArgument: there is
  // no combination; says why.
  static absl::StatusOr<CandidateSpace> Create(const PlannerRequest& request);

  // Ascending lower bound.
  const std::vector<Candidate>& candidates() const { return candidates_; }

  // InvalidArgument or FailedPrecondition if the schedule refuses the shape.
  absl::StatusOr<schedule::Schedule> ScheduleOf(const Candidate& candidate) const;

  static constexpr double kAnyMemory = std::numeric_limits<double>::infinity();
  // A candidate's pipeline under its own or another schedule of its shape, on devices with that
  // share of their memory.
  absl::StatusOr<Pipeline> PipelineOf(const Candidate& candidate,
                                      const schedule::Schedule& schedule,
                                      double memory_share = 1.0);

  // The bound of any order of work on the candidate's ranks; or, if `is_fused`, of those in which B
  // and W are one operation.
  absl::StatusOr<double> LowerBoundNs(const Candidate& candidate, bool is_fused);

  // The bound of any plan for the devices, however they are grouped: all work at all speed.
  double WorkBoundNs() const;
  // False where there are too many devices to try all ways to group them.
  bool has_all_groupings() const { return has_all_groupings_; }

  // In which the layers of a graph are cut into its stages; empty for a chain.
  absl::StatusOr<std::vector<int>> OrderOf(const Candidate& candidate);

 private:
  explicit CandidateSpace(const PlannerRequest& request) : request_(request) {}

  absl::Status Enumerate();
  absl::StatusOr<const GraphCut*> GraphCutOf(const Candidate& candidate);
  // Whether stage s is on rank s, and no other is.
  bool IsInOrder(const Candidate& candidate) const;
  // The devices of so many ranks with the fastest slowest stage; empty if they are equally many, or
  // the question takes too long.
  std::vector<int> UnequalGroups(int ranks) const;
  // Adds the schedules that are asked for, with those ranks.
  absl::Status AddShapes(const std::vector<int>& replicas);
  absl::Status AddShape(const std::vector<int>& replicas, int64_t micro_batch_rows);
  absl::Status Add(Candidate candidate);
  absl::StatusOr<std::shared_ptr<const LayerTable>> TableOf(const Candidate& candidate,
                                                            int devices);
  absl::StatusOr<std::vector<RankDevices>> DevicesOfRanks(const Candidate& candidate,
                                                          double memory_share);

  const PlannerRequest& request_;
  std::vector<Candidate> candidates_;
  bool has_all_groupings_ = true;
  absl::Status refusal_;  // the first reason for which a combination was left out
  // By rows of a device, micro-batches, and stages (which matter for the order of a graph).
  std::map<std::tuple<int64_t, int, int>, std::shared_ptr<const LayerTable>> tables_;
  std::map<std::tuple<std::vector<int>, int, int64_t>, GraphCut> graph_cuts_;  // ..., stages, rows
  std::map<std::tuple<std::vector<int>, int64_t, int, bool>, double> bounds_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CANDIDATES_H_
