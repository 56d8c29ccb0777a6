#include "engine/train/save_interval.h"

#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

TEST(SaveInterval, IsYoungs) {
  EXPECT_EQ(SaveInterval(absl::Seconds(2), absl::Seconds(10'000)), absl::Seconds(200));
  EXPECT_EQ(SaveInterval(absl::Seconds(0.5), absl::Seconds(40'000)), absl::Seconds(200));
}

TEST(SaveInterval, CostsAtMostAHundredth) {
  EXPECT_EQ(SaveInterval(absl::Seconds(2), absl::Seconds(10)), absl::Seconds(200));
}

TEST(SaveInterval, IsASecondAtLeast) {
  EXPECT_EQ(SaveInterval(absl::Milliseconds(1), -absl::Hours(1)), absl::Seconds(1));
  EXPECT_EQ(SaveInterval(absl::ZeroDuration(), absl::Hours(24)), absl::Seconds(1));
}

}  // namespace
}  // namespace stagecoach::engine
