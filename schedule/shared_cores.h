#ifndef STAGECOACH_SCHEDULE_SHARED_CORES_H_
#define STAGECOACH_SCHEDULE_SHARED_CORES_H_

#include "schedule/costs.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// The step of a compute schedule if its ranks share `cores`, > 0: whenever more ranks than that
// have work to do, each goes on at cores / ranks of its speed, as threads of equal priority do.
// Messages take no time. With a core for every rank it is Simulate's with buffered sends.
// Pre-condition: the schedule is valid, the costs have updates_in_backward.
double SharedCoresStepNs(const Schedule& schedule, const Costs& costs, double cores);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SHARED_CORES_H_
