#include "base/deadline.h"

#include <gtest/gtest.h>

#include <chrono>

namespace stagecoach::base {
namespace {

TEST(Deadline, NeverDoesNotExpire) {
  EXPECT_FALSE(Deadline::Never().Expired());
  EXPECT_EQ(Deadline::Never().Remaining(), absl::InfiniteDuration());
}

TEST(Deadline, TimeoutsTooLongForTheClockNeverExpire) {
  EXPECT_TRUE(Deadline::After(absl::InfiniteDuration()).IsNever());
  EXPECT_TRUE(Deadline::After(absl::Hours(24) * 366 * 300).IsNever());
}

TEST(Deadline, ZeroAndNegativeTimeoutsHaveExpired) {
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), absl::Seconds(-1), -absl::InfiniteDuration()}) {
    EXPECT_TRUE(Deadline::After(timeout).Expired()) << timeout;
    EXPECT_EQ(Deadline::After(timeout).Remaining(), absl::ZeroDuration()) << timeout;
  }
}

TEST(Deadline, RemainingIsAtMostTheTimeout) {
  const Deadline deadline = Deadline::After(absl::Hours(1));
  EXPECT_FALSE(deadline.Expired());
  EXPECT_LE(deadline.Remaining(), absl::Hours(1));
  EXPECT_GT(deadline.Remaining(), absl::ZeroDuration());
}

TEST(Deadline, AtKeepsItsTime) {
  const Deadline::Clock::time_point time(std::chrono::seconds(12345));
  EXPECT_EQ(Deadline::At(time).time(), time);
}

}  // namespace
}  // namespace stagecoach::base
