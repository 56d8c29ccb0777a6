#ifndef STAGECOACH_BENCH_SHARED_CORES_H_
#define STAGECOACH_BENCH_SHARED_CORES_H_

#include "schedule/costs.h"
#include "schedule/schedule.h"

namespace stagecoach::bench {

// The step of a compute schedule if its ranks share `cores`: whenever more ranks than that have
// work to do, each goes on at cores / ranks of its speed, as threads of equal priority do. Messages
// take no time. With a core for every rank it is schedule::Simulate's with buffered sends.
// Pre-condition: the schedule is valid, the costs have updates_in_backward.
double SharedCoresStepNs(const schedule::Schedule& schedule, const schedule::Costs& costs,
                         int cores);

}  // namespace stagecoach::bench

#endif  // STAGECOACH_BENCH_SHARED_CORES_H_
