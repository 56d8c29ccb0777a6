#ifndef STAGECOACH_SCHEDULE_SHARED_CORES_H_
#define STAGECOACH_SCHEDULE_SHARED_CORES_H_

#include "schedule/costs.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// The step of a compute schedule if its ranks share `cores`, > 0: whenever more ranks than that
// have work to do, each goes on at cores / ranks of its speed, as threads of equal priority do.
// Messages take no time, and an update is part of the stage's last backward pass. With a core for
// every rank it is Simulate's with buffered sends and updates_in_backward, but for schedules that
// overlap two passes of a rank (DualPipeV), which are performed one after the other here.
// Pre-condition: the schedule is valid.
double SharedCoresStepNs(const Schedule& schedule, const Costs& costs, double cores);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SHARED_CORES_H_
