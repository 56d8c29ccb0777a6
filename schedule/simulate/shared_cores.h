#ifndef STAGECOACH_SCHEDULE_SIMULATE_SHARED_CORES_H_
#define STAGECOACH_SCHEDULE_SIMULATE_SHARED_CORES_H_

#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::schedule {

// Returns the step time of a compute schedule if its ranks share `cores`, > 0: whenever more ranks
// than that have work to do, each runs at cores / ranks of its speed, as threads of equal priority
// do. Messages take no time, and an update is part of the stage's last backward pass. With a core
// for every rank this is Simulate's result with buffered sends and updates_in_backward, except for
// schedules that overlap two passes of a rank (DualPipeV), which are performed one after the other
// here. Pre-condition: the schedule is valid.
double SharedCoresStepNs(const Schedule& schedule, const Costs& costs, double cores);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SIMULATE_SHARED_CORES_H_
