#include "base/system/file_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::base {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;

class FileLocks : public ::testing::Test {
 protected:
  absl::StatusOr<FileLock> Take(const std::string& owner) const {
    return FileLock::Take(path_, owner);
  }

  const TestFolder folder_;
  const std::string path_ = (folder_.path() / "lock").string();
};

TEST_F(FileLocks, AreHeldByOneThatTheOthersAreTold) {
  absl::StatusOr<FileLock> first = Take("the first, who is long-winded");
  ASSERT_OK(first.status());
  EXPECT_THAT(Take("another").status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 ::testing::Eq("the first, who is long-winded")));
  { const FileLock ended = *std::move(first); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  const absl::StatusOr<FileLock> second = Take("second");
  ASSERT_OK(second.status());
  EXPECT_THAT(Take("another").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::Eq("second")));
}

TEST_F(FileLocks, WaitForTheNameOfOneThatHasJustBegun) {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT, 0666);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  std::thread writes([file] {
    absl::SleepFor(absl::Milliseconds(120));
    static_cast<void>(write(file, "late", 4));
  });
  EXPECT_THAT(Take("another").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::Eq("late")));
  writes.join();
  close(file);
}

TEST_F(FileLocks, AreTakenOverFromAProcessThatWasKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const absl::StatusOr<FileLock> lock = Take("child");
    static_cast<void>(write(ready[1], lock.ok() ? "1" : "0", 1));
    while (true) pause();
  }
  char is_held = '0';
  ASSERT_EQ(read(ready[0], &is_held, 1), 1);
  EXPECT_EQ(is_held, '1');
  EXPECT_THAT(Take("another").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::Eq("child")));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_OK(Take("another").status());
  for (const int end : ready) close(end);
}

TEST_F(FileLocks, AreLeftWithTheirFileIfTheyAreAbandoned) {
  absl::StatusOr<FileLock> lock = Take("one");
  ASSERT_OK(lock.status());
  lock->Abandon();
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_OK(Take("another").status());
}

TEST_F(FileLocks, AreNotMadeThroughALink) {
  std::filesystem::create_symlink(folder_.path() / "elsewhere", path_);
  EXPECT_FALSE(Take("one").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "elsewhere"));
}

}  // namespace
}  // namespace stagecoach::base
