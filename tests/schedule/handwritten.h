#ifndef STAGECOACH_TESTS_SCHEDULE_HANDWRITTEN_H_
#define STAGECOACH_TESTS_SCHEDULE_HANDWRITTEN_H_

#include <string>
#include <vector>

#include "schedule/ir/placement.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::schedule {

// Builds a schedule from text: one string per rank, the codes of its actions (ParseCode) separated
// by blanks. Aborts if the text does not have that form.
Schedule FromText(const std::vector<int>& rank_of_stage, int num_micro_batches,
                  const std::vector<std::string>& lists);

// Does the inverse, for one rank.
std::string ToText(const std::vector<Action>& list);

// Returns ZB-H1 for 2 ranks and 3 micro-batches: B and W apart.
Schedule HandwrittenH1();

// Returns four stages in V placement on 2 ranks (0, 1, 1, 0), 2 micro-batches, B and W apart on
// stages 1 and 2, fused on the others. Each rank sends activations and gradients to the other, and
// stages 1 and 2 pass buffers in place.
Schedule HandwrittenV();

// Returns the memory of one stage of a chain, in multiples of 256 bytes; nothing resident, no
// workspace.
StageMemory TypicalStage(bool first);

// Returns TypicalStage for every stage of a schedule.
std::vector<StageMemory> TypicalStages(const Schedule& schedule);

// Returns UniformCosts of ranks * chunks stages in a loop.
inline Costs LoopCosts(int ranks, int chunks, const DeviceTimes& device, int64_t latency_ns) {
  return UniformCosts(PlaceStages(Placement::kLoop, ranks, chunks), device, latency_ns);
}

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_HANDWRITTEN_H_
