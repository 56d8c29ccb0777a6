#include <cuda_runtime_api.h>
#include <nccl.h>

#include <bit>
#include <cstddef>
#include <cstdint>
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

TEST_F(Nccl, TwoRanksExchangeInOneGroup) {
  StartConnected(2);
  for (size_t r = 0; r < 2; ++r) {
    Launch(r, [peer = 1 - static_cast<int>(r)](Rank& self) {
      EXPECT_EQ(self.Send(peer, Rank::kBytes), ncclSuccess);
      EXPECT_EQ(self.Receive(peer, Rank::kBytes), ncclSuccess);
    });
  }
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(rank(r).IsDone());
    EXPECT_THAT(rank(r).Received(Rank::kBytes), Each(0xA0 + 1 - static_cast<int>(r)));
  }
}

// Each rank sends before it receives: a deadlock, however little is sent.
TEST_F(Nccl, BuffersNothing) {
  for (const size_t bytes : {size_t{1}, Rank::kBytes}) {
    StartConnected(2);
    for (size_t r = 0; r < 2; ++r) {
      const int peer = 1 - static_cast<int>(r);
      Launch(r, [=](Rank& self) { EXPECT_EQ(self.Send(peer, bytes), ncclSuccess); });
      Launch(r, [=](Rank& self) { EXPECT_EQ(self.Receive(peer, bytes), ncclSuccess); });
    }
    EXPECT_FALSE(rank(0).IsDone());
    EXPECT_FALSE(rank(1).IsDone());
    ranks_.clear();
  }
}

TEST_F(Nccl, OneOrderOnBothSidesIsNoDeadlock) {
  StartConnected(2);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 100), ncclSuccess); });
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Receive(1, 100), ncclSuccess); });
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 100), ncclSuccess); });
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 100), ncclSuccess); });
  EXPECT_TRUE(rank(0).IsDone());
  EXPECT_TRUE(rank(1).IsDone());
}

TEST_F(Nccl, GroupsThatWaitInACircleAreADeadlock) {
  StartConnected(3);
  for (int r = 0; r < 3; ++r) {
    const auto self = static_cast<size_t>(r);
    Launch(self, [r](Rank& of) { EXPECT_EQ(of.Receive((r + 2) % 3, 1), ncclSuccess); });
    Launch(self, [r](Rank& of) { EXPECT_EQ(of.Send((r + 1) % 3, 1), ncclSuccess); });
  }
  for (const auto& self : ranks_) EXPECT_FALSE(self->IsDone());
}

TEST_F(Nccl, SendWaitsUntilTheReceiverIsThere) {
  StartConnected(2);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 1), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone());
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 1), ncclSuccess); });
  EXPECT_TRUE(rank(0).IsDone());
}

TEST_F(Nccl, ReceiverIsThereOnlyOnceItsStreamHasComeToIt) {
  StartConnected(2);
  // Rank 1's stream waits for an event after a transfer that waits for rank 0.
  cudaEvent_t event = nullptr;
  rank(1).Use();
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclRecv(rank(1).in, 1, ncclUint8, 0, rank(1).communicator, rank(1).other_stream),
            ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
  ASSERT_EQ(rank(1).StateAtLast(), ncclSuccess);
  ASSERT_EQ(cudaEventRecord(event, rank(1).other_stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(rank(1).stream, event, 0), cudaSuccess);
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 1), ncclSuccess); });
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Receive(1, 1), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone());
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 1), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone());
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(Nccl, WorkBehindAGroupWaitsForIt) {
  StartConnected(2);
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 16), ncclSuccess); });
  ASSERT_EQ(cudaMemsetAsync(rank(1).in + 16, 7, 16, rank(1).stream), cudaSuccess);
  EXPECT_FALSE(rank(1).IsDone());
  EXPECT_THAT(rank(1).Received(32), Each(0));
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 16), ncclSuccess); });
  EXPECT_TRUE(rank(1).IsDone());
  EXPECT_THAT(rank(1).Received(16), Each(0xA0));
  EXPECT_THAT(rank(1).Received(16, 16), Each(7));
}

TEST_F(Nccl, GroupsOfOneCommunicatorAreSerialOnDifferentStreams) {
  StartConnected(3);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 1), ncclSuccess); });
  Launch(0, [](Rank& self) {
    EXPECT_EQ(ncclSend(self.out, 1, ncclUint8, 2, self.communicator, self.other_stream),
              ncclSuccess);
  });
  Launch(2, [](Rank& self) { EXPECT_EQ(self.Receive(0, 1), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone(rank(0).other_stream));
  EXPECT_FALSE(rank(2).IsDone());
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 1), ncclSuccess); });
  EXPECT_TRUE(rank(0).IsDone(rank(0).other_stream));
  EXPECT_TRUE(rank(2).IsDone());
}

TEST_F(Nccl, AGroupOnTwoStreamsStartsOnceBothHaveComeToIt) {
  StartConnected(3);
  // One of the streams waits until rank 1 sends to rank 2.
  Launch(2, [](Rank& self) { EXPECT_EQ(self.Receive(1, 1), ncclSuccess); });
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, rank(2).stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(rank(0).other_stream, event, 0), cudaSuccess);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Send(1, 1), ncclSuccess);
    EXPECT_EQ(ncclRecv(self.in, 1, ncclUint8, 1, self.communicator, self.other_stream),
              ncclSuccess);
  });
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Receive(0, 1), ncclSuccess);
    EXPECT_EQ(self.Send(0, 1), ncclSuccess);
  });
  EXPECT_FALSE(rank(1).IsDone());
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(2, 1), ncclSuccess); });
  EXPECT_FALSE(rank(1).IsDone());  // groups are serial: this one comes too late
  // Otherwise rank 0's stream would wait forever.
  EXPECT_EQ(ncclCommAbort(std::exchange(rank(2).communicator, nullptr)), ncclSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(Nccl, AGroupOnTwoStreamsOccupiesBoth) {
  StartConnected(2);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Send(1, 1), ncclSuccess);
    EXPECT_EQ(ncclRecv(self.in, 1, ncclUint8, 1, self.communicator, self.other_stream),
              ncclSuccess);
  });
  EXPECT_FALSE(rank(0).IsDone());
  EXPECT_FALSE(rank(0).IsDone(rank(0).other_stream));
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Receive(0, 1), ncclSuccess);
    EXPECT_EQ(self.Send(0, 1), ncclSuccess);
  });
  EXPECT_TRUE(rank(0).IsDone());
  EXPECT_TRUE(rank(0).IsDone(rank(0).other_stream));
}

TEST_F(Nccl, TransfersOfOneGroupAreDoneEachByItself) {
  StartConnected(3);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Send(2, 4), ncclSuccess);
    EXPECT_EQ(self.Send(1, 4), ncclSuccess);
  });
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 4), ncclSuccess); });
  EXPECT_TRUE(rank(1).IsDone());
  EXPECT_THAT(rank(1).Received(4), Each(0xA0));
  EXPECT_FALSE(rank(0).IsDone());
}

TEST_F(Nccl, TransfersToOnePeerKeepTheirOrder) {
  StartConnected(2);
  ASSERT_EQ(cudaMemsetAsync(rank(0).out + 4, 0x11, 4, rank(0).stream), cudaSuccess);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Send(1, 4, 0), ncclSuccess);
    EXPECT_EQ(self.Send(1, 4, 4), ncclSuccess);
  });
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Receive(0, 4, 8), ncclSuccess);
    EXPECT_EQ(self.Receive(0, 4, 0), ncclSuccess);
  });
  EXPECT_TRUE(rank(1).IsDone());
  EXPECT_THAT(rank(1).Received(4, 8), Each(0xA0));
  EXPECT_THAT(rank(1).Received(4, 0), Each(0x11));
}

TEST_F(Nccl, ARankCanSendToItself) {
  Start(1);
  Launch(0, [](Rank& self) {
    EXPECT_EQ(self.Send(0, 4), ncclSuccess);
    EXPECT_EQ(self.Receive(0, 4), ncclSuccess);
  });
  EXPECT_TRUE(rank(0).IsDone());
  EXPECT_THAT(rank(0).Received(4), Each(0xA0));
}

TEST_F(Nccl, ATransferOutsideOfAGroupIsAGroup) {
  StartConnected(2);
  ASSERT_EQ(rank(0).Send(1, 4), ncclInProgress);
  ASSERT_EQ(rank(1).Receive(0, 4), ncclInProgress);
  EXPECT_EQ(rank(0).StateAtLast(), ncclSuccess);
  EXPECT_EQ(rank(1).StateAtLast(), ncclSuccess);
  EXPECT_TRUE(rank(1).IsDone());
}

TEST_F(Nccl, ThreadsPassDataAroundARing) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 20;
  const ncclUniqueId id = NewId();
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([r, &id] {
      Rank self(r);
      ASSERT_EQ(self.Init(kRanks, id, /*blocking=*/1), ncclSuccess);
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        EXPECT_EQ(self.Send((r + 1) % kRanks, 64), ncclSuccess);
        EXPECT_EQ(self.Receive((r + kRanks - 1) % kRanks, 64), ncclSuccess);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        // The received data are sent on.
        ASSERT_EQ(cudaMemcpyAsync(self.out, self.in, 64, cudaMemcpyDeviceToDevice, self.stream),
                  cudaSuccess);
      }
      ASSERT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
      EXPECT_THAT(self.Received(64), Each(0xA0 + (r + kRanks * kRounds - kRounds) % kRanks));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Nccl, AllReduceAddsInPlace) {
  StartConnected(3);
  constexpr size_t kElements = Rank::kBytes / sizeof(float);
  for (size_t r = 0; r < 3; ++r) {
    rank(r).Fill(rank(r).in, 0x40 + static_cast<int>(r));
    Launch(r, [=](Rank& self) {
      EXPECT_EQ(ncclAllReduce(self.in, self.in, kElements, ncclFloat32, ncclSum, self.communicator,
                              self.stream),
                ncclSuccess);
    });
  }
  const float expected = std::bit_cast<float>(0x40404040U) + std::bit_cast<float>(0x41414141U) +
                         std::bit_cast<float>(0x42424242U);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(rank(r).IsDone());
    const std::vector<int> bytes = rank(r).Received(kElements * sizeof(float));
    for (const size_t at : {size_t{0}, (kElements - 1) * sizeof(float)}) {
      uint32_t bits = 0;
      for (size_t i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(bytes[at + i]) << (8 * i);
      EXPECT_EQ(std::bit_cast<float>(bits), expected);
    }
  }
}

}  // namespace
}  // namespace stagecoach::testing::cuda
