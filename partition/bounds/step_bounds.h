#ifndef STAGECOACH_PARTITION_BOUNDS_STEP_BOUNDS_H_
#define STAGECOACH_PARTITION_BOUNDS_STEP_BOUNDS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "partition/bounds/boundaries.h"
#include "schedule/simulate/costs.h"

// Lower bounds of a step that account for messages, memory and the boundaries of a graph. They test
// whether any division of the layers meets the conditions that each plan within a step meets, and
// bisect over the step. docs/planner.md has the proofs.
namespace stagecoach::partition {

struct StepBoundProblem {
  absl::Span<const Boundary> boundaries;
  std::vector<double> speeds;  // index: rank
  // Stages per rank. One: stage s is on rank s. Several: they pass the ranks in a loop or back and
  // forth.
  int chunks = 1;
  // Links from each rank to the next one, and back; with several chunks, also between the last and
  // the first.
  std::vector<schedule::Link> forward_links, backward_links;
  int micro_batches = 1;  // of each replica
  // True if every stage has B and W in one operation.
  bool is_fused = false;
  // True if a rank waits until what it sends has arrived.
  bool sends_block = false;
  // The most micro-batches that a stage has between F and B. Index: stage; none: for any order.
  std::vector<int> in_flight = {};
  std::vector<double> memory_bytes;  // index: rank
  // True if a stage keeps all of its input until B.
  bool keeps_inputs = false;
};

// Returns a time that no plan can beat, and at least `at_least_ns`. Within 0.4 % of the step at
// which the conditions are first met, or `enough_ns` if that is less; or what was found until
// `is_over`, which is called often.
double StepBoundNs(const StepBoundProblem& problem, double at_least_ns, double enough_ns,
                   absl::FunctionRef<bool()> is_over);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_BOUNDS_STEP_BOUNDS_H_
