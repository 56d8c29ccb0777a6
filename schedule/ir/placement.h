#ifndef STAGECOACH_SCHEDULE_IR_PLACEMENT_H_
#define STAGECOACH_SCHEDULE_IR_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "schedule/ir/action.h"

namespace stagecoach::schedule {

// Decides which rank has which of its ranks * chunks stages.
enum class Placement : uint8_t {
  kLoop,  // stage s on rank s mod ranks; with 1 chunk, stage s on rank s
  kV,     // 2 chunks: down the ranks and back up, so that the last stage is on rank 0
};

// Returns the rank of each stage. Pre-condition: both counts are at least 1; kV has 2 chunks.
std::vector<Rank> PlaceStages(Placement placement, int ranks, int chunks);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IR_PLACEMENT_H_
