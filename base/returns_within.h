#ifndef STAGECOACH_BASE_RETURNS_WITHIN_H_
#define STAGECOACH_BASE_RETURNS_WITHIN_H_

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace stagecoach::base {

// Runs `work` in a thread of its own and waits until it has returned, for at most `limit`. False:
// it has not. The thread then goes on, so `work` must own, or never lose, all that it uses. If it
// still runs when the process exits, the exit does not wait for it: one line on stderr says that
// `name`, such as "ncclCommAbort of rank 1 of 4", has not returned, and the process ends at once
// with its exit status, its files written out but its static objects not destroyed.
//
// For calls into libraries that may wait for ever and have no deadline of their own.
bool ReturnsWithin(absl::Duration limit, const std::string& name, std::function<void()> work);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_RETURNS_WITHIN_H_
