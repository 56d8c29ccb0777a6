#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/nccl/rank.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(Nccl, StartsOnceAllRanksHaveCome) {
  const ncclUniqueId id = NewId();
  Rank first(0), second(1);
  ASSERT_EQ(first.Init(2, id), ncclInProgress);
  EXPECT_EQ(first.StateAtLast(), ncclInProgress);
  ASSERT_EQ(second.Init(2, id), ncclInProgress);
  EXPECT_EQ(first.StateAtLast(), ncclSuccess);
  EXPECT_EQ(second.StateAtLast(), ncclSuccess);
}

TEST_F(Nccl, BlockingStartReturnsOnceAllRanksHaveCome) {
  const ncclUniqueId id = NewId();
  std::array<ncclResult_t, 3> results{};
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      Rank self(r);
      results[static_cast<size_t>(r)] = self.Init(3, id, /*blocking=*/1);
      EXPECT_EQ(self.State(), ncclSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, Each(ncclSuccess));
}

TEST_F(Nccl, RefusesTwoRanksOnOneGpu) {
  const ncclUniqueId id = NewId();
  Rank first(0, 0), second(1, 0);
  ASSERT_EQ(first.Init(2, id), ncclInProgress);
  ASSERT_EQ(second.Init(2, id), ncclInProgress);
  EXPECT_EQ(first.StateAtLast(), ncclInvalidUsage);
  EXPECT_EQ(second.StateAtLast(), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(second.communicator), HasSubstr("Duplicate GPU detected"));
}

TEST_F(Nccl, RefusesStartsThatCannotBe) {
  const ncclUniqueId id = NewId();
  Rank self(0), twin(0), outsider(2);
  EXPECT_EQ(outsider.Init(2, id), ncclInvalidArgument);
  EXPECT_EQ(self.Init(2, ncclUniqueId{}), ncclSystemError);
  ncclConfig_t config{};
  EXPECT_EQ(ncclCommInitRankConfig(&self.communicator, 2, id, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(self.communicator, nullptr);
  ASSERT_EQ(self.Init(2, id), ncclInProgress);
  EXPECT_EQ(twin.Init(2, id), ncclInternalError);
}

TEST_F(Nccl, NeedsADriver) {
  Reset({.driver = false});
  ncclUniqueId id = NewId();
  ncclComm_t communicator = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&communicator, 1, id, 0, nullptr), ncclUnhandledCudaError);
}

TEST_F(Nccl, FinalizesOnceItsGroupsAreDone) {
  StartConnected(2);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 8), ncclSuccess); });
  ASSERT_EQ(ncclCommFinalize(rank(0).communicator), ncclInProgress);
  EXPECT_EQ(ncclCommDestroy(rank(0).communicator), ncclInvalidArgument);
  EXPECT_EQ(rank(0).StateAtLast(), ncclInProgress);
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 8), ncclSuccess); });
  EXPECT_EQ(rank(0).StateAtLast(), ncclSuccess);
  EXPECT_EQ(rank(0).Send(1, 8), ncclInvalidUsage);
  EXPECT_EQ(ncclCommDestroy(std::exchange(rank(0).communicator, nullptr)), ncclSuccess);
  EXPECT_EQ(live().communicators, 1);
}

TEST_F(Nccl, DestroyFinalizes) {
  StartConnected(2);
  EXPECT_EQ(ncclCommDestroy(std::exchange(rank(0).communicator, nullptr)), ncclSuccess);
  EXPECT_EQ(live().communicators, 1);
}

TEST_F(Nccl, KnowsWhatHasBeenDestroyed) {
  Start(1);
  ncclComm_t gone = std::exchange(rank(0).communicator, nullptr);
  ASSERT_EQ(ncclCommDestroy(gone), ncclSuccess);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(gone, &state), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(gone), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(rank(0).out, 1, ncclUint8, 0, gone, rank(0).stream), ncclInvalidArgument);
}

// This holds whether or not all ranks joined.
TEST_F(Nccl, IdsGiveBackTheirFiles) {
  const auto files = [] {
    int64_t count = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  };
  const auto use_ids = [] {
    for (int i = 0; i < 10; ++i) {
      Rank first(0), second(1);
      EXPECT_EQ(first.Init(2, NewId()), ncclInProgress);
      const ncclUniqueId id = NewId();
      Rank third(0);
      EXPECT_EQ(third.Init(2, id), ncclInProgress);
      EXPECT_EQ(second.Init(2, id), ncclInProgress);
    }
  };
  use_ids();
  const int64_t before = files();
  use_ids();
  EXPECT_EQ(files(), before);
}

}  // namespace
}  // namespace stagecoach::testing::cuda
