#ifndef STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_
#define STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_

#include "partition/plan.h"

namespace stagecoach::partition {

// Makes the schedule that the search of schedule/automatic.h finds for a model, among orders with
// one stage per device and (if it has enough layers) two in a V: the one whose step is shortest.
// `request` is the plan to be made, without its schedule; its device memory limits the stash, and
// where that is unlimited, what 1F1B stashes on its first device does. `chunks`: 1 or 2 to search
// only those; 0 for both.
ScheduleMaker AutomaticSchedule(PlanRequest request, int micro_batches, int chunks = 0);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_
