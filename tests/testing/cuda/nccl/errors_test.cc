#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/nccl/rank.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::HasSubstr;

// ---- Requirements of a nonblocking communicator.

TEST_F(Nccl, NothingIsInTheStreamBeforeTheCommunicatorIsReadyAgain) {
  StartConnected(2);
  rank(0).Group([&] { EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess); });
  EXPECT_TRUE(rank(0).IsDone());
  EXPECT_EQ(rank(0).StateAtLast(), ncclSuccess);
  EXPECT_FALSE(rank(0).IsDone());
}

TEST_F(Nccl, RefusesWorkBeforeTheCommunicatorIsReadyAgain) {
  StartConnected(2);
  rank(0).Group([&] { EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess); });
  EXPECT_EQ(rank(0).Send(1, 1), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("before the previous operation"));
}

TEST_F(Nccl, FirstExchangeIsInProgressUntilThePeerPosts) {
  Start(2);
  rank(0).Group([&] { EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess); });
  EXPECT_EQ(rank(0).StateAtLast(), ncclInProgress);
  rank(1).Group([&] { EXPECT_EQ(rank(1).Receive(0, 1), ncclSuccess); });
  EXPECT_EQ(rank(0).StateAtLast(), ncclSuccess);
}

TEST_F(Nccl, AGroupWithAnErrorPostsNothing) {
  StartConnected(2);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess);
  EXPECT_EQ(rank(0).Send(2, 1), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(rank(0).State(), ncclSuccess);
  EXPECT_TRUE(rank(0).IsDone());
}

TEST_F(Nccl, EndsOnceTheOthersEndIfAskedTo) {
  Reset({.nccl_end_waits = true});
  StartConnected(3);
  std::atomic<bool> ended{false};
  std::thread first([&] {
    EXPECT_EQ(ncclCommAbort(std::exchange(rank(0).communicator, nullptr)), ncclSuccess);
    ended = true;
  });
  EXPECT_EQ(rank(1).StateAtLast(), ncclSuccess);  // after many polls
  std::thread second([&] {
    EXPECT_EQ(ncclCommDestroy(std::exchange(rank(1).communicator, nullptr)), ncclSuccess);
  });
  EXPECT_EQ(rank(2).StateAtLast(), ncclSuccess);
  EXPECT_FALSE(ended);
  EXPECT_EQ(ncclCommAbort(std::exchange(rank(2).communicator, nullptr)), ncclSuccess);
  first.join();
  second.join();
}

TEST_F(Nccl, GroupsNest) {
  StartConnected(2);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

TEST_F(Nccl, RefusesStreamsOfOtherGpus) {
  StartConnected(2);
  EXPECT_EQ(ncclSend(rank(0).out, 1, ncclUint8, 1, rank(0).communicator, rank(1).stream),
            ncclUnhandledCudaError);
}

// ---- Errors.

TEST_F(Nccl, AbortEndsItsOwnGroupsOnly) {
  StartConnected(3);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Receive(1, 8), ncclSuccess);
    EXPECT_EQ(self.Receive(2, 8), ncclSuccess);
  });
  EXPECT_FALSE(rank(0).IsDone());
  ncclComm_t gone = std::exchange(rank(0).communicator, nullptr);
  EXPECT_EQ(ncclCommAbort(gone), ncclSuccess);
  EXPECT_TRUE(rank(0).IsDone());
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Send(0, 8), ncclSuccess);
    EXPECT_EQ(self.Send(2, 8), ncclSuccess);
  });
  Launch(2, [](Rank& self) { EXPECT_EQ(self.Receive(1, 8), ncclSuccess); });
  EXPECT_TRUE(rank(2).IsDone());
  EXPECT_FALSE(rank(1).IsDone());
  EXPECT_EQ(rank(1).State(), ncclSuccess);
  EXPECT_EQ(ncclSend(rank(0).out, 1, ncclUint8, 1, gone, rank(0).stream), ncclInvalidArgument);
}

TEST_F(Nccl, AbortEndsAStartThatWaits) {
  Rank alone(0);
  ASSERT_EQ(alone.Init(2, NewId()), ncclInProgress);
  EXPECT_EQ(ncclCommAbort(std::exchange(alone.communicator, nullptr)), ncclSuccess);
  EXPECT_EQ(live().communicators, 0);
}

TEST_F(Nccl, AFailedCommunicatorSaysSoAndNeverEndsItsGroups) {
  StartConnected(2);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 8), ncclSuccess); });
  FailCommunicator(0);
  EXPECT_EQ(rank(0).State(), ncclRemoteError);
  EXPECT_EQ(rank(0).Send(1, 8), ncclRemoteError);
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 8), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone());
  EXPECT_FALSE(rank(1).IsDone());
  EXPECT_EQ(ncclCommAbort(std::exchange(rank(0).communicator, nullptr)), ncclSuccess);
  EXPECT_TRUE(rank(0).IsDone());
}

TEST_F(Nccl, ACommunicatorFailsAfterSomeGroups) {
  StartConnected(2);
  FailCommunicator(1, 2);
  const auto exchange = [this] {
    rank(0).Group([&] { EXPECT_EQ(rank(0).Send(1, 8), ncclSuccess); });
    EXPECT_EQ(rank(0).StateAtLast(), ncclSuccess);
    rank(1).Group([&] { EXPECT_EQ(rank(1).Receive(0, 8), ncclSuccess); });
    return rank(1).StateAtLast();
  };
  EXPECT_EQ(exchange(), ncclSuccess);
  EXPECT_TRUE(rank(1).IsDone());
  exchange();
  EXPECT_EQ(rank(1).StateAtLast(), ncclRemoteError);
  EXPECT_FALSE(rank(0).IsDone());
}

TEST_F(Nccl, FailsOnPurposeWithItsOwnErrors) {
  StartConnected(2);
  ncclUniqueId id;
  FailCall(1);
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSystemError);
  EXPECT_EQ(failed_call(), "ncclGetUniqueId");
  FailCall(1);
  EXPECT_EQ(ncclGroupStart(), ncclInternalError);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(rank(0).Send(1, 1), ncclSuccess);
  FailCall(1);
  EXPECT_EQ(ncclGroupEnd(), ncclInternalError);
  EXPECT_THAT(ncclGetLastError(rank(0).communicator), HasSubstr("ncclGroupEnd"));
  // The group has ended.
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(rank(0).State(), ncclSuccess);
}

// The dying process makes its ranks itself, because ranks share memory with the process that it
// comes from.
using NcclDeathTest = Nccl;

TEST_F(NcclDeathTest, DiesOfEndsThatDoNotMatch) {
  EXPECT_DEATH(
      {
        StartConnected(2);
        Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 64), ncclSuccess); });
        Launch(1, [](Rank& self) { (void)self.Receive(0, 32); });
        rank(1).IsDone();
      },
      "rank 0 sends 64 bytes of type 1 to rank 1, which receives 32 bytes of type 1");
}

TEST_F(NcclDeathTest, DiesOfBuffersInHostMemory) {
  StartConnected(2);
  std::byte host[8];
  EXPECT_DEATH((void)ncclSend(host, 8, ncclUint8, 1, rank(0).communicator, rank(0).stream),
               "ncclSend: rank 0, peer 1: the 8 bytes are not in memory");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
