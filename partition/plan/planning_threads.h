#ifndef STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_
#define STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_

#include <cstdint>

#include "base/parallel.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// Smaller schedules are done before a thread has started.
inline constexpr int64_t kLeastActionsForThreads = 200'000;

// Returns the number of threads for work on all actions of a schedule.
inline int ThreadsFor(const schedule::Schedule& schedule) {
  return schedule.num_actions() < kLeastActionsForThreads ? 1 : base::AvailableCpus();
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_
