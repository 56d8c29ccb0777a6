#ifndef STAGECOACH_PARTITION_CHAIN_H_
#define STAGECOACH_PARTITION_CHAIN_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace stagecoach::partition {

// Cut `layer_ns.size()` layers into `stages` contiguous, non-empty ranges so that the slowest range
// is as fast as possible.
struct ChainProblem {
  std::vector<double> layer_ns;  // finite, >= 0
  int stages = 1;
  // Whether the range [first, last] (both inclusive) fits the device of `stage`. Empty: everything
  // fits. Any predicate will do: it need not be monotone in the range.
  std::function<bool(int first, int last, int stage)> fits = nullptr;
};

struct ChainCut {
  std::vector<int> first_layer;  // of each stage; ascending, starts with 0
  double bottleneck_ns = 0;      // time of the slowest stage
};

// Exact. Among all cuts with the least bottleneck, the one whose stages are most even: the sum of
// squares of their times is least; among those the first in lexicographic order of first_layer.
// Times are compared as whole multiples of a unit, at most layers * 2^-59 of the slowest layer, so
// that stages of equal layers tie whatever the order in which their times are added.
// InvalidArgument: more stages than layers, no stage, a negative or non-finite time.
// ResourceExhausted: no cut fits.
// O(stages * layers^2) time and calls of `fits`, each (first, last, stage) asked at most once; with
// `fits`, stages * (layers - stages + 1)^2 bytes of memory.
absl::StatusOr<ChainCut> PartitionChain(const ChainProblem& problem);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_CHAIN_H_
