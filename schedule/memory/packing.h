#ifndef STAGECOACH_SCHEDULE_MEMORY_PACKING_H_
#define STAGECOACH_SCHEDULE_MEMORY_PACKING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::schedule {

// Sets the offset of every block so that blocks that live at the same time do not overlap: largest
// first (the earliest claimed among equals), each at the lowest offset that is free for its whole
// life. Returns the extent. Nearly linear if blocks repeat, as under a schedule: a block looks at
// the places that are free when it is claimed, and at those that are not in words of 64. Optimal if
// all sizes are equal: an interval graph colored in the order of the intervals' starts needs no
// more colors than the largest number of intervals that overlap.
int64_t PackBlocks(absl::Span<Block> blocks);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_MEMORY_PACKING_H_
