#ifndef STAGECOACH_TESTS_TESTING_CUDA_NCCL_RANK_H_
#define STAGECOACH_TESTS_TESTING_CUDA_NCCL_RANK_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/cuda/nccl/clique.h"
#include "tests/testing/cuda/stand_in.h"

// Helpers for tests of NCCL's stand-in.
namespace stagecoach::testing::cuda {

// A rank with a GPU of its own, and memory for sent and received data.
class Rank {
 public:
  static constexpr size_t kBytes = Clique::kChunkBytes + 1000;  // more than passes at once

  explicit Rank(int number, int gpu);
  explicit Rank(int number) : Rank(number, number) {}
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void Use();
  ncclResult_t Init(int ranks, const ncclUniqueId& id, int blocking = 0);
  ncclResult_t State();
  // Returns the state once it is no longer ncclInProgress, or has been for longer than any possible
  // work takes.
  ncclResult_t StateAtLast();

  ncclResult_t Send(int to, size_t bytes, size_t at = 0);
  ncclResult_t Receive(int from, size_t bytes, size_t at = 0);
  // Runs one group of what `post` posts, which the library reports to be in progress.
  void Group(const std::function<void()>& post);

  bool IsDone(cudaStream_t of);
  bool IsDone() { return IsDone(stream); }

  void Fill(std::byte* memory, int value);
  std::vector<int> Received(size_t bytes, size_t at = 0);

  const int rank;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  std::byte *out = nullptr, *in = nullptr;

 private:
  const int gpu_;
  std::byte* host_ = nullptr;
};

ncclUniqueId NewId();

class Nccl : public ::testing::Test {
 protected:
  Nccl() { Reset({.delay = 0.3}); }
  ~Nccl() override {
    ranks_.clear();
    EXPECT_EQ(live().total(), 0);
  }

  Rank& rank(size_t number) { return *ranks_[number]; }

  // Starts ranks whose communicators are ready, and not connected.
  void Start(int ranks);
  // Connects all to all.
  void Connect();
  void StartConnected(int ranks) {
    Start(ranks);
    Connect();
  }
  // Launches one group, which gets into its streams.
  void Launch(size_t number, const std::function<void(Rank&)>& post) {
    rank(number).Group([&] { post(rank(number)); });
    EXPECT_EQ(rank(number).StateAtLast(), ncclSuccess);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_RANK_H_
