#ifndef STAGECOACH_SCHEDULE_PACKING_H_
#define STAGECOACH_SCHEDULE_PACKING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "schedule/memory.h"

namespace stagecoach::schedule {

// Sets the offset of every block so that blocks that live at the same time do not overlap: largest
// first (of equal ones the earliest claimed), each at the lowest offset that is free for its whole
// life. Returns the extent. Nearly linear where blocks repeat, as under a schedule: a block looks
// at the places that are free when it is claimed, and at words of 64 of those that are not. Optimal
// if all sizes are equal: an interval graph colored in the order of the intervals' starts needs no
// more colors than intervals overlap anywhere.
int64_t PackBlocks(absl::Span<Block> blocks);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PACKING_H_
