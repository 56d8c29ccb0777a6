#include "tools/stagecoach/terminal/slow_notice.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace stagecoach::tools {
namespace {

std::string SaidWithin(absl::Duration patience, absl::Duration work) {
  ::testing::internal::CaptureStderr();
  {
    const SlowNotice notice("reads data.csv", patience);
    absl::SleepFor(work);
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(SlowNotice, SaysNothingOfWhatTakesNoTime) {
  EXPECT_EQ(SaidWithin(absl::Hours(1), absl::ZeroDuration()), "");
}

TEST(SlowNotice, SaysOnceWhatTakesLong) {
  EXPECT_EQ(SaidWithin(absl::ZeroDuration(), absl::Seconds(1)), "stagecoach: reads data.csv\n");
}

}  // namespace
}  // namespace stagecoach::tools
