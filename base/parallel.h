#ifndef STAGECOACH_BASE_PARALLEL_H_
#define STAGECOACH_BASE_PARALLEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace stagecoach::base {

// How many threads this process may run at once; at least 1.
int AvailableCpus();

// Calls `work` with each number from 0 to count - 1, once, on up to `threads` threads, this one
// among them, and returns when all calls have. They begin in ascending order; `work` must not
// throw. Where no more threads can be made, those that there are do it.
void ForEachInParallel(int64_t count, int threads, absl::FunctionRef<void(int64_t)> work);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_PARALLEL_H_
