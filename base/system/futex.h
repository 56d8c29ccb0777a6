#ifndef STAGECOACH_BASE_SYSTEM_FUTEX_H_
#define STAGECOACH_BASE_SYSTEM_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "base/deadline.h"

namespace stagecoach::base {

// Waiting for a 32-bit word to change: this is how stage threads hand work to each other.
//
// The standard library has nothing suitable: std::atomic::wait has no deadline, and every wait here
// must have one; a condition variable costs 13-24 us per hand-over where a futex costs 1-2 us; and
// unbounded spinning, which is fastest with a core per thread, takes milliseconds per hand-over as
// soon as threads outnumber cores. So a wait spins for about 2 us, which catches a peer that is
// about to finish, and then sleeps in the Linux futex system call.
//
// The waker stores the new value and then calls WakeAll:
//   word.store(next, std::memory_order_release);
//   WakeAll(word);
// Both functions are for threads of one process (private futexes) and may be called concurrently.

// Blocks while `word` holds `value`. Returns true, with acquire ordering, as soon as another value
// is seen, and false if the deadline passes first. With an expired deadline it only tests. A word
// that changes and changes back between two looks may be missed, so let words only count up.
[[nodiscard]] bool WaitWhileEqual(const std::atomic<uint32_t>& word, uint32_t value,
                                  Deadline deadline);

// Wakes every thread that waits on `word`. Makes a system call even if no thread waits.
void WakeAll(std::atomic<uint32_t>& word);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_FUTEX_H_
