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
#include "partition/search/cutoff.h"
#include "partition/search/pipeline.h"
#include "partition/search/planner.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// One combination of what a request leaves open, but for the cut.
struct Candidate {
  std::string schedule;  // of a generator; "" for the one that was given
  int chunks = 1;        // stages per rank
  int ranks = 1;
  Replication replication;  // each replica has so many ranks: together all devices
  int micro_batches = 1;    // of all replicas
  int64_t micro_batch_rows = 1;
  double lower_bound_ns = 0;  // of the objective, whatever the cut

  int num_stages() const { return chunks * ranks; }
  int replicas() const { return replication.replicas; }
  int micro_batches_of_each() const { return micro_batches / replicas(); }
};

// All combinations for a request, and what is needed to judge them. Thread-compatible.
class CandidateSpace {
 public:
  // `request` must pass the checks of PlanJointly. Once the cutoff is reached, graphs are cut less
  // well. Both must outlive the space. InvalidArgument: there is no combination; says why.
  static absl::StatusOr<CandidateSpace> Create(const PlannerRequest& request, Cutoff& cutoff);

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

  // In which the layers of a graph are cut into its stages; empty for a chain.
  absl::StatusOr<std::vector<int>> OrderOf(const Candidate& candidate);

 private:
  CandidateSpace(const PlannerRequest& request, Cutoff& cutoff)
      : request_(request), cutoff_(cutoff) {}

  absl::Status Enumerate();
  absl::StatusOr<const GraphCut*> GraphCutOf(const Candidate& candidate);
  // Whether stage s is on rank s, and no other is.
  bool IsInOrder(const Candidate& candidate) const;
  // Adds the schedules that are asked for, with so many replicas.
  absl::Status AddShapes(int replicas);
  absl::Status AddShape(int replicas, int64_t micro_batch_rows);
  absl::Status Add(Candidate candidate);
  // In the order in which they are cut, and in that of the profile.
  absl::StatusOr<std::shared_ptr<const LayerTable>> LayersOf(const Candidate& candidate);
  std::shared_ptr<const LayerTable> GivenLayersOf(const Candidate& candidate);

  const PlannerRequest& request_;
  Cutoff& cutoff_;
  std::vector<Candidate> candidates_;
  absl::Status refusal_;  // the first reason for which a combination was left out
  // By rows, micro-batches of each replica, and replicas.
  std::map<std::tuple<int64_t, int, int>, std::shared_ptr<const LayerTable>> tables_;
  // By replicas, stages, and rows; and whether B and W are one operation.
  std::map<std::tuple<int, int, int64_t>, GraphCut> graph_cuts_;
  std::map<std::tuple<int, int, int64_t, bool>, double> bounds_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CANDIDATES_H_
