#ifndef STAGECOACH_PARTITION_SEARCH_GROUPS_H_
#define STAGECOACH_PARTITION_SEARCH_GROUPS_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace stagecoach::partition {

// Cut layers into contiguous, non-empty stages and give each a group of consecutive devices, all
// devices used, so that the slowest stage is as fast as possible: replicated stages (PipeDream,
// Narayanan et al. 2019, section 3.1, with the number of stages and the place of each known to the
// cost).
struct GroupProblem {
  int layers = 1;
  int devices = 1;
  int stages = 1;
  struct Stage {
    int first = 0;  // layers, both inclusive
    int last = 0;
    int index = 0;         // of the stage
    int first_device = 0;  // of its group
    int devices = 1;
  };
  // Time of a stage, 0 or more; infinity if it is not allowed. Any function will do.
  std::function<double(const Stage&)> stage_ns = nullptr;
};

struct GroupCut {
  std::vector<int> first_layer;  // index: stage
  std::vector<int> devices;      // index: stage; sums to those of the problem
  double bottleneck_ns = 0;
};

// Exact, by dynamic programming; among equals the cut with the least sum of stage times, and among
// those the one whose stages, from the first on, end first, then have the fewest devices.
// O(stages * layers^2 * devices^2) calls, each for a range at most twice.
// InvalidArgument: fewer layers or devices than stages, no stage. ResourceExhausted: no cut is
// allowed.
absl::StatusOr<GroupCut> PartitionOverGroups(const GroupProblem& problem);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_GROUPS_H_
