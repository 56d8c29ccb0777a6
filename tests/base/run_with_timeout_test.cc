#include "base/system/run_with_timeout.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::base {
namespace {

constexpr absl::Duration kAMinute = absl::Minutes(1);
constexpr absl::Duration kAMoment = absl::Milliseconds(20);

void NeverReturn() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

TEST(RunWithTimeout, RunsTheWorkInAnotherThread) {
  std::thread::id thread;
  EXPECT_TRUE(RunWithTimeout(kAMinute, "work", [&] { thread = std::this_thread::get_id(); }));
  EXPECT_NE(thread, std::thread::id());
  EXPECT_NE(thread, std::this_thread::get_id());
}

using ReturnsWithinDeathTest = ::testing::Test;

// All cases run in processes of their own, which lose a thread.
TEST(ReturnsWithinDeathTest, LeavesBehindWhatDoesNotReturnAndEndsWithOneLine) {
  struct AtTheEnd {
    ~AtTheEnd() { std::fputs("destroyed", stderr); }
  };
  EXPECT_EXIT(
      {
        static const AtTheEnd at_the_end;
        std::exit(RunWithTimeout(kAMoment, "the call", NeverReturn) ? 0 : 7);
      },
      ::testing::ExitedWithCode(7),
      "^stagecoach: the call has not returned; the process ends without it\n$");
}

TEST(ReturnsWithinDeathTest, WritesOutFilesAtTheEnd) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "kept";
  EXPECT_EXIT(
      {
        std::FILE* const file = std::fopen(path.c_str(), "w");
        std::fputs("kept", file);
        RunWithTimeout(kAMoment, "the call", NeverReturn);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  std::FILE* const file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  char text[8] = {};
  EXPECT_NE(std::fgets(text, sizeof(text), file), nullptr);
  EXPECT_STREQ(text, "kept");
  std::fclose(file);
}

TEST(ReturnsWithinDeathTest, EndsAsUsualIfAllHasReturnedByThen) {
  EXPECT_EXIT(
      {
        // This returns after the limit.
        const auto late = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
        const bool in_time = RunWithTimeout(kAMoment, "the call", late);
        std::this_thread::sleep_for(std::chrono::seconds(2));
        std::exit(in_time ? 0 : 7);
      },
      ::testing::ExitedWithCode(7), "^$");
}

}  // namespace
}  // namespace stagecoach::base
