#ifndef STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
#define STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_

#include <cstdint>
#include <random>

#include "schedule/costs.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

int64_t DrawBelow(int max, std::mt19937& random);

// Operations of up to 1 us, B and W together up to 2, and messages of up to 4 kB over a link of its
// own between any two ranks. Passes do not overlap (Costs::overlap_share), and updates come after
// them.
Costs RandomCosts(const Schedule& schedule, int max_latency_ns, std::mt19937& random);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
