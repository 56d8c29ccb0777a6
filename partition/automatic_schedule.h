#ifndef STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_
#define STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_

#include "partition/plan.h"

namespace stagecoach::partition {

// Makes the schedule whose step is shortest for a model: of those that the search of
// schedule/automatic.h finds, and of the generated ones, with one stage per device or, if there are
// layers enough, two in a V or a loop. The result is called "auto".
//
// `request`: the plan to be made, without its schedule. Every candidate is cut like a plan and must
// fit the devices' memory; where that is unlimited, it may stash what 1F1B does on its first
// device, and no more. `chunks`: search only orders with that many stages per device; 0 for 1
// and 2. Steps are simulated with the sends of the runtime and the times of the layers.
//
// If nothing fits, the error is that of MakePlan for 1F1B.
ScheduleMaker AutomaticSchedule(PlanRequest request, int micro_batches, int chunks = 0);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_AUTOMATIC_SCHEDULE_H_
