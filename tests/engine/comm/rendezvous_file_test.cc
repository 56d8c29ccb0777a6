#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/rendezvous_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::StatusIs;

class FileRendezvousTest : public RendezvousTest {
 protected:
  FileRendezvousTest() : RendezvousTest(Place::kFile) {}
};

TEST_F(FileRendezvousTest, KeepsLaunchesInOneFolderApart) {
  std::vector<std::thread> threads;
  for (const std::string id : {"a", "b", ""}) {
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, id, rank] {
        auto rendezvous = ConnectRendezvous(LaunchOf(rank, 2, id), kLong);
        ASSERT_OK(rendezvous);
        for (int i = 0; i < 10; ++i) {
          ASSERT_THAT((*rendezvous)->AllGather(id, Soon()).value(), ElementsAre(id, id));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileRendezvousTest, LeavesNothingBehind) {
  ForEachRank(3, [](Rendezvous& rendezvous) {
    EXPECT_OK(rendezvous.Set(absl::StrCat("key ", rendezvous.rank()), "", Soon()));
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
  EXPECT_THAT(std::vector(std::filesystem::directory_iterator(folder_), {}), IsEmpty());
}

TEST_F(FileRendezvousTest, DoesNotGrowWithTheNumberOfGathers) {
  ForEachRank(2, [this](Rendezvous& rendezvous) {
    for (int i = 0; i < 20; ++i) ASSERT_OK(rendezvous.Barrier(Soon()));
    const std::filesystem::directory_iterator files(folder_ + "/stagecoach-rendezvous-job");
    // Two ranks arrived; each has files of one gather and perhaps of the one before.
    EXPECT_LE(std::distance(begin(files), end(files)), 2 + 2 * 2);
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
}

TEST_F(FileRendezvousTest, RefusesWhatAKilledLaunchHasLeft) {
  const Signal arrived;
  Process killed([&] {
    const auto rendezvous = Connect(1, 2);
    arrived.Send();
    pause();
  });
  arrived.Await();
  killed.Kill();
  EXPECT_THAT(Connect(1, 2), StatusIs(absl::StatusCode::kAlreadyExists, "removed"));
}

TEST_F(FileRendezvousTest, EndsAtTheDeadlineWhenRankZeroIsKilled) {
  const Signal together;
  Process zero([&] {
    const auto rendezvous = Connect(0, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    pause();
  });
  Process one([&] {
    const auto rendezvous = Connect(1, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    together.Send();
    EXPECT_THAT((*rendezvous)->Barrier(Short()),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 of 2"));
  });
  together.Await();
  zero.Kill();
  EXPECT_TRUE(one.Succeeds());
}

TEST_F(FileRendezvousTest, RefusesAFolderThatOthersMayWriteTo) {
  const std::string folder = folder_ + "/stagecoach-rendezvous-job";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kPermissionDenied, folder));
}

TEST_F(FileRendezvousTest, RefusesALinkInThePlaceOfItsFolder) {
  std::filesystem::create_directory_symlink("/", folder_ + "/stagecoach-rendezvous-job");
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(FileRendezvousTest, NamesAFolderThatIsNotThere) {
  place_ += "/missing";
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kNotFound, "/missing"));
}

}  // namespace
}  // namespace stagecoach::engine
