#include "base/system/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::base {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "the kernel compares the plain 32-bit word");

// A pause takes 40 to 60 ns on current x86 processors.
constexpr int kSpins = 32;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

timespec ToTimespec(Deadline deadline) {
  const auto since_epoch = deadline.time().time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  timespec time;
  time.tv_sec = static_cast<time_t>(seconds.count());
  time.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since_epoch - seconds).count());
  return time;
}

// Sleeps unless the word already differs from `value`. May return early for no reason.
void Sleep(const std::atomic<uint32_t>& word, uint32_t value, Deadline deadline) {
  // FUTEX_WAIT would take a relative time, which grows with every early return; the bitset variant
  // takes a time of CLOCK_MONOTONIC, which is what std::chrono::steady_clock reads.
  const timespec until = ToTimespec(deadline);
  const long result =
      syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value,
              deadline.IsNever() ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  STAGECOACH_CHECK(result == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT,
                   absl::StrCat("futex wait failed with errno ", errno));
}

}  // namespace

bool WaitWhileEqual(const std::atomic<uint32_t>& word, uint32_t value, Deadline deadline) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != value) return true;
    Pause();
  }
  while (word.load(std::memory_order_acquire) == value) {
    if (deadline.Expired()) return false;
    Sleep(word, value, deadline);
  }
  return true;
}

void WakeAll(std::atomic<uint32_t>& word) {
  const long result = syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  STAGECOACH_CHECK(result >= 0, absl::StrCat("futex wake failed with errno ", errno));
}

}  // namespace stagecoach::base
