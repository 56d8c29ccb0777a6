#ifndef STAGECOACH_BASE_DEADLINE_H_
#define STAGECOACH_BASE_DEADLINE_H_

#include <chrono>

#include "absl/time/time.h"

namespace stagecoach::base {

// A point on the steady clock at which a wait times out. Passing one deadline down through nested
// waits bounds their sum, which passing a timeout would not. A value: copyable, immutable.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns the deadline `timeout` from now. A negative timeout has already expired; one too long
  // for the clock, such as absl::InfiniteDuration(), never expires.
  static Deadline After(absl::Duration timeout) {
    const Clock::time_point now = Clock::now();
    if (timeout >= absl::FromChrono(Clock::time_point::max() - now)) return Never();
    if (timeout <= absl::ZeroDuration()) return Deadline(now);
    return Deadline(now + absl::ToChronoNanoseconds(timeout));
  }
  static Deadline At(Clock::time_point time) { return Deadline(time); }
  static Deadline Never() { return Deadline(Clock::time_point::max()); }

  bool IsNever() const { return time_ == Clock::time_point::max(); }
  bool Expired() const { return !IsNever() && Clock::now() >= time_; }

  // Returns the time left: never negative; absl::InfiniteDuration() for Never().
  absl::Duration Remaining() const {
    if (IsNever()) return absl::InfiniteDuration();
    const Clock::time_point now = Clock::now();
    return now >= time_ ? absl::ZeroDuration() : absl::FromChrono(time_ - now);
  }

  // Returns the time point; Clock::time_point::max() for Never().
  Clock::time_point time() const { return time_; }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}

  Clock::time_point time_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_DEADLINE_H_
