#ifndef STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_
#define STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_

#include <cstdint>

#include "base/parallel.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// Of smaller schedules, all is done before a thread has begun.
inline constexpr int64_t kLeastActionsForThreads = 200'000;

// On how many threads what concerns all actions of a schedule is worked out.
inline int ThreadsFor(const schedule::Schedule& schedule) {
  return schedule.num_actions() < kLeastActionsForThreads ? 1 : base::AvailableCpus();
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PLANNING_THREADS_H_
