#ifndef STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
#define STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_

#include <cstdint>
#include <random>

#include "schedule/costs.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// From 0 to max - 1.
int64_t Draw(std::mt19937& random, int max);

// Passes of up to 1 us and messages of up to 4 kB, over a link of its own between any two ranks.
// Stages do not overlap (Costs::overlap_share), and update after their last pass.
Costs RandomCosts(const Schedule& schedule, int max_latency_ns, std::mt19937& random);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_RANDOM_COSTS_H_
