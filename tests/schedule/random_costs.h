#ifndef STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
#define STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_

#include <cstdint>
#include <random>

#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::schedule {

int64_t DrawBelow(int max, std::mt19937& random);

// Returns costs with operations of up to 1 us, B and W together up to 2, and messages of up to 4 kB
// over a separate link between any two ranks. Passes do not overlap (Costs::overlap_share), and
// updates come after them.
Costs RandomCosts(const Schedule& schedule, int max_latency_ns, std::mt19937& random);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
