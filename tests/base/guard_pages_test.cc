#include "base/system/guard_pages.h"

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::base {
namespace {

constexpr int64_t kBytes = 40'000'000;  // checked in several system calls

TEST(GuardPages, TellsOfReadsAndWritesUntilItHasBeenAsked) {
  absl::StatusOr<GuardPages> memory = GuardPages::Create(kBytes);
  if (absl::IsUnavailable(memory.status())) GTEST_SKIP() << memory.status();
  ASSERT_OK(memory);
  EXPECT_FALSE(memory->TakeTouched(kBytes));
  volatile std::byte* const data = memory->data();
  const std::byte last = data[kBytes - 1];
  EXPECT_EQ(last, std::byte{0});
  EXPECT_FALSE(memory->TakeTouched(kBytes / 2));  // not in this half
  EXPECT_TRUE(memory->TakeTouched(kBytes));
  EXPECT_FALSE(memory->TakeTouched(kBytes));
  data[5] = std::byte{1};
  EXPECT_TRUE(memory->TakeTouched(6));
  const std::byte again = data[5];
  EXPECT_EQ(again, std::byte{0});
}

}  // namespace
}  // namespace stagecoach::base
