#ifndef STAGECOACH_BASE_PARALLEL_H_
#define STAGECOACH_BASE_PARALLEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace stagecoach::base {

// Returns how many threads this process may run at once; at least 1.
int AvailableCpus();

// Calls `work` once with each number from 0 to count - 1, on up to `threads` threads including this
// one, and returns when all calls have returned. Calls begin in ascending order; `work` must not
// throw. If no more threads can be created, the existing ones do the work.
void ForEachInParallel(int64_t count, int threads, absl::FunctionRef<void(int64_t)> work);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_PARALLEL_H_
