#ifndef STAGECOACH_PARTITION_EXACT_CHAIN_H_
#define STAGECOACH_PARTITION_EXACT_CHAIN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {

// The problem of cutting `layer_ns.size()` layers into `stages` contiguous, non-empty ranges so
// that the slowest stage is as fast as possible. Stage s with the layers [first, last] (inclusive)
// takes
//
//   start_ns[first] + sum of layer_ns / speeds[s] + extra_ns(first, last, s)      to compute,
//   2 * micro_batches * links[s - 1].TransferNs(boundary_bytes[first])            to receive,
//   2 * micro_batches * links[s].TransferNs(boundary_bytes[last + 1])             to send
//
// (an activation passes a boundary forward and its gradient, as large, backward). Its time is the
// largest of the three if `overlaps_messages`, else their sum.
struct ChainProblem {
  std::vector<double> layer_ns = {};  // of a batch, on a device of speed 1; finite, >= 0
  int stages = 1;
  std::vector<double> speeds = {};  // index: stage; 1e-100 to 1e100; empty: all 1
  // Added to a stage that begins with that layer, such as the wait until it is reached; finite, >=
  // 0; index: layer; empty: none.
  std::vector<double> start_ns = {};

  int64_t micro_batches = 1;                 // 1 to 2^32
  std::vector<int64_t> boundary_bytes = {};  // index: the layer behind it; empty: no messages
  std::vector<schedule::Link> links = {};    // stages - 1 of them; empty: they take no time
  bool overlaps_messages = false;

  // A range must satisfy: sum of layer_bytes + in_flight[s] * sum of layer_stash_bytes <=
  // budget_bytes[s]. Sizes are 0 or more; all layers on one stage need at most 4.6e18 bytes.
  std::vector<int64_t> layer_bytes = {};        // index: layer; empty: all 0
  std::vector<int64_t> layer_stash_bytes = {};  // index: layer; empty: all 0
  std::vector<int64_t> in_flight = {};          // index: stage; empty: all 1
  std::vector<int64_t> budget_bytes = {};       // index: stage; may be negative; empty: no limit

  // Additional cost of a range: 0 or more ns (anything less aborts), infinity if it is not allowed.
  // The function need not be monotone in the range; it is called often, also repeatedly for the
  // same range, and must then return the same. Empty: nothing.
  std::function<double(int first, int last, int stage)> extra_ns = nullptr;
};

struct ChainCut {
  std::vector<int> first_layer;  // of each stage; ascending, starts with 0
  double bottleneck_ns = 0;      // time of the slowest stage
};

// Finds the exact optimum. Among all cuts with the least bottleneck, chooses the one whose stages
// are most even: the sum of squares of their times is least; among those, the first in
// lexicographic order of first_layer. (If more than kMaxEvened ranges could be a stage of such a
// cut, any of them.) Times are compared as whole multiples of a unit, at most 2^-50 of the longest
// that a stage could take, with layers rounded one by one, so that stages of equal layers on equal
// devices tie whatever the order in which their times are added.
//
// Method: bisection over the bottleneck; for each value a dynamic program over (stage, boundary)
// computes which boundaries can be reached, with a sliding-window minimum over where the stage may
// begin (docs/planner.md has the proof). O(stages * layers) time per value, unless extra_ns forbids
// what the other terms allow; then each refusal may cost a scan of the rest of the window. O(stages
// * layers) bytes.
//
// InvalidArgument: more stages than layers, no stage, more than kMaxLayers (profile.h), a field of
// the wrong length, a value out of range. ResourceExhausted: no cut fits.
absl::StatusOr<ChainCut> PartitionChain(const ChainProblem& problem);

// Returns only the bottleneck of that cut, or `at_least_ns` if that is no less: faster, since
// nothing below is distinguished. Errors: those of PartitionChain.
absl::StatusOr<double> LeastBottleneckNs(const ChainProblem& problem, double at_least_ns = 0);

inline constexpr int64_t kMaxEvened = int64_t{1} << 24;

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_CHAIN_H_
