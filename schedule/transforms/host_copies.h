#ifndef STAGECOACH_SCHEDULE_TRANSFORMS_HOST_COPIES_H_
#define STAGECOACH_SCHEDULE_TRANSFORMS_HOST_COPIES_H_

#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The number of operations (an action, or an overlapped pair) of its rank that a copy has for
// itself: a RELEASE stands behind as many after the OFFLOAD, and a FETCH in front of as many before
// B. Two are one of each kind, while forward and backward passes alternate.
inline constexpr int kOperationsPerCopy = 2;
// A stash is moved only if at least so many operations stand between its F and its B: those of the
// two copies, and one during which its memory is free.
inline constexpr int kLeastKept = 2 * kOperationsPerCopy + 1;

// Adds an OFFLOAD, a RELEASE and a FETCH for a share of the stashes of each rank, out of those that
// are kept long enough (kLeastKept): all for 1, and about half for 0.5. Stages whose stashes are
// kept longest come first, as in PipeOffload (Wan et al. 2025, arXiv 2503.01328); of the last stage
// that is moved in part, the micro-batches are spread evenly. Does nothing if the schedule has such
// actions already, or does not train. A valid schedule stays valid: no rank waits for another one
// because of a copy.
//
// Pre-condition: `lowered` is a lowered schedule that passes Validate; 0 <= share <= 1.
void AddHostCopies(double share, Schedule& lowered);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRANSFORMS_HOST_COPIES_H_
