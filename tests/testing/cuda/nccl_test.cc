#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// More calls than anything that can be done takes to be done.
constexpr int kMany = 2000;

// A rank with a GPU of its own, and memory for what it sends and what it receives.
class Rank {
 public:
  static constexpr size_t kBytes = size_t{1} << 16;

  explicit Rank(int number, int gpu) : rank(number), gpu_(gpu) {
    Use();
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithPriority(&other_stream, cudaStreamNonBlocking, 0), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&out), kBytes), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&in), kBytes), cudaSuccess);
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host_), kBytes, 0), cudaSuccess);
    Fill(out, 0xA0 + rank);
    Fill(in, 0);
  }
  explicit Rank(int number) : Rank(number, number) {}
  ~Rank() {
    Use();
    EXPECT_EQ(ncclCommAbort(communicator), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
    EXPECT_EQ(cudaFree(out), cudaSuccess);
    EXPECT_EQ(cudaFree(in), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(host_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_stream), cudaSuccess);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void Use() { EXPECT_EQ(cudaSetDevice(gpu_), cudaSuccess); }
  ncclResult_t Init(int ranks, const ncclUniqueId& id, int blocking = 0) {
    Use();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    return ncclCommInitRankConfig(&communicator, ranks, id, rank, &config);
  }
  ncclResult_t State() {
    ncclResult_t state = ncclNumResults;
    EXPECT_EQ(ncclCommGetAsyncError(communicator, &state), ncclSuccess);
    return state;
  }
  ncclResult_t StateAtLast() {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < kMany && state == ncclInProgress; ++i) state = State();
    return state;
  }

  ncclResult_t Send(int to, size_t bytes, size_t at = 0) {
    return ncclSend(out + at, bytes, ncclUint8, to, communicator, stream);
  }
  ncclResult_t Receive(int from, size_t bytes, size_t at = 0) {
    return ncclRecv(in + at, bytes, ncclUint8, from, communicator, stream);
  }
  // One group of what `post` posts, of which the library says that it is under way.
  void Group(const std::function<void()>& post) {
    Use();
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    post();
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  }

  bool IsDone(cudaStream_t of) {
    cudaError_t error = cudaErrorNotReady;
    for (int i = 0; i < kMany && error == cudaErrorNotReady; ++i) error = cudaStreamQuery(of);
    EXPECT_THAT(error, ::testing::AnyOf(cudaSuccess, cudaErrorNotReady));
    return error == cudaSuccess;
  }
  bool IsDone() { return IsDone(stream); }

  void Fill(std::byte* memory, int value) {
    EXPECT_EQ(cudaMemsetAsync(memory, value, kBytes, other_stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
  }
  std::vector<int> Received(size_t bytes, size_t at = 0) {
    EXPECT_EQ(cudaMemcpyAsync(host_, in + at, bytes, cudaMemcpyDeviceToHost, other_stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
    std::vector<int> values;
    for (size_t i = 0; i < bytes; ++i) values.push_back(static_cast<int>(host_[i]));
    return values;
  }

  const int rank;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  std::byte *out = nullptr, *in = nullptr;

 private:
  const int gpu_;
  std::byte* host_ = nullptr;
};

ncclUniqueId NewId() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

class Nccl : public ::testing::Test {
 protected:
  Nccl() { Reset({.delay = 0.3}); }
  ~Nccl() override {
    ranks_.clear();
    EXPECT_EQ(live().total(), 0);
  }

  Rank& rank(size_t number) { return *ranks_[number]; }

  // Ranks whose communicators are ready, and not connected.
  void Start(int ranks) {
    const ncclUniqueId id = NewId();
    for (int r = 0; r < ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>(r));
      EXPECT_EQ(rank(static_cast<size_t>(r)).Init(ranks, id), ncclInProgress);
    }
    for (const auto& started : ranks_) EXPECT_EQ(started->StateAtLast(), ncclSuccess);
  }
  // Connects all to all.
  void Connect() {
    for (const auto& self : ranks_) {
      self->Group([&] {
        for (const auto& peer : ranks_) {
          if (peer == self) continue;
          EXPECT_EQ(self->Send(peer->rank, 1), ncclSuccess);
          EXPECT_EQ(self->Receive(peer->rank, 1), ncclSuccess);
        }
      });
    }
    for (const auto& self : ranks_) EXPECT_EQ(self->StateAtLast(), ncclSuccess);
    for (const auto& self : ranks_) EXPECT_TRUE(self->IsDone());
    for (const auto& self : ranks_) self->Fill(self->in, 0);
  }
  void StartConnected(int ranks) {
    Start(ranks);
    Connect();
  }
  // One group, which gets into its streams.
  void Launch(size_t number, const std::function<void(Rank&)>& post) {
    rank(number).Group([&] { post(rank(number)); });
    EXPECT_EQ(rank(number).StateAtLast(), ncclSuccess);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

// ---- Start and end.

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

// ---- Rendezvous.

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

// Each sends before it receives: a deadlock, however little is sent.
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
  // Rank 1's stream waits for an event behind a transfer that waits for rank 0.
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
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 1), ncclSuccess); });
  EXPECT_FALSE(rank(1).IsDone());
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Send(2, 1), ncclSuccess);
    EXPECT_EQ(self.Send(0, 1), ncclSuccess);
  });
  EXPECT_FALSE(rank(1).IsDone());  // serial: that one comes too late
  // Else rank 0's stream would wait for ever.
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
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 1), ncclSuccess); });
  EXPECT_FALSE(rank(0).IsDone());
  EXPECT_FALSE(rank(0).IsDone(rank(0).other_stream));
  Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 1), ncclSuccess); });
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
        // What was received is sent on.
        ASSERT_EQ(cudaMemcpyAsync(self.out, self.in, 64, cudaMemcpyDeviceToDevice, self.stream),
                  cudaSuccess);
      }
      ASSERT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
      EXPECT_THAT(self.Received(64), Each(0xA0 + (r + kRanks * kRounds - kRounds) % kRanks));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- What a nonblocking communicator asks of its user.

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
  Launch(1, [](Rank& self) {
    EXPECT_EQ(self.Send(0, 8), ncclSuccess);
    EXPECT_EQ(self.Send(2, 8), ncclSuccess);
  });
  EXPECT_FALSE(rank(0).IsDone());
  ncclComm_t gone = std::exchange(rank(0).communicator, nullptr);
  EXPECT_EQ(ncclCommAbort(gone), ncclSuccess);
  EXPECT_TRUE(rank(0).IsDone());
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
  // The group is over.
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(rank(0).State(), ncclSuccess);
}

using NcclDeathTest = Nccl;

TEST_F(NcclDeathTest, DiesOfEndsThatDoNotMatch) {
  StartConnected(2);
  Launch(0, [](Rank& self) { EXPECT_EQ(self.Send(1, 64), ncclSuccess); });
  EXPECT_DEATH(
      {
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
