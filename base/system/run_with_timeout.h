#ifndef STAGECOACH_BASE_SYSTEM_RUN_WITH_TIMEOUT_H_
#define STAGECOACH_BASE_SYSTEM_RUN_WITH_TIMEOUT_H_

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace stagecoach::base {

// Runs `work` in a thread of its own and waits at most `limit` for it to return. Returns false if
// it has not: the thread then keeps running, so `work` must own, or never lose, everything it uses.
// If it is still running when the process exits, the exit does not wait for it: one line on stderr
// says that `name`, such as "ncclCommAbort of rank 1 of 4", has not returned, and the process ends
// at once with its exit status, its files flushed but its static objects not destroyed.
//
// Meant for calls into libraries that may wait forever and have no deadline of their own.
bool RunWithTimeout(absl::Duration limit, const std::string& name, std::function<void()> work);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_RUN_WITH_TIMEOUT_H_
