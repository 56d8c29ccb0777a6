#ifndef STAGECOACH_TESTS_SCHEDULE_EVERY_ORDER_H_
#define STAGECOACH_TESTS_SCHEDULE_EVERY_ORDER_H_

#include <cstdint>
#include <functional>

#include "schedule/search/automatic.h"

namespace stagecoach::schedule {

// Returns the least objective of all compute schedules of the request that are within its limits
// and valid once lowered, found by trying every order of every rank, with B and W apart or as BW
// for each micro-batch. Only for very small requests; negative if there is none.
int64_t BestOfEveryOrder(const AutomaticRequest& request);

// Calls `body` with each of those orders that completes, valid or not.
void ForEveryOrder(const AutomaticRequest& request,
                   const std::function<void(const Schedule&)>& body);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_EVERY_ORDER_H_
