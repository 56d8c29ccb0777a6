#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/testing/cuda/emulator/emulator_test_kernels.h"
#include "tests/testing/cuda/raw_device.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/cuda/stand_in_fixture.h"

namespace stagecoach::testing::cuda {
namespace {

class Captured : public StandIn {
 protected:
  // Captures what `issue` puts into the stream as a graph.
  cudaError_t Capture(cudaStream_t stream, const std::function<void()>& issue) {
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    issue();
    return cudaStreamEndCapture(stream, &graph_);
  }
  ~Captured() override {
    EXPECT_EQ(graph_ == nullptr ? cudaSuccess : cudaGraphDestroy(graph_), cudaSuccess);
  }

  cudaGraph_t graph_ = nullptr;
};

TEST_F(Captured, NothingRunsBeforeTheGraphIsLaunchedAndThenInOrder) {
  const RawStream stream;
  const DeviceArray<float> x(stream, {1, 2, 3});
  const PinnedArray<float> host(3);
  ASSERT_EQ(Capture(stream,
                    [&] {
                      EXPECT_EQ(LaunchTwice(stream, x.data(), 3), cudaSuccess);
                      EXPECT_EQ(LaunchWrite(stream, x.data(), 1), cudaSuccess);
                    }),
            cudaSuccess);
  EXPECT_EQ(x.Download(stream), (std::vector<float>{1, 2, 3}));
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph_, 0), cudaSuccess);
  EXPECT_EQ(live().graphs, 2);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  // Pending launches outlive the graph.
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(x.Download(stream), (std::vector<float>{4, 1, 12}));
}

TEST_F(Captured, WhatWaitsForTheStreamSpoilsTheCapture) {
  const RawStream stream;
  const RawEvent event;
  for (const std::function<cudaError_t()>& call : std::vector<std::function<cudaError_t()>>{
           [&] { return cudaStreamSynchronize(stream); }, [&] { return cudaStreamQuery(stream); },
           [&] {
             EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
             return cudaEventQuery(event);
           },
           [&] { return cudaStreamWaitEvent(stream, event, 0); }}) {
    EXPECT_EQ(Capture(stream, [&] { EXPECT_NE(call(), cudaSuccess); }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
  }
  stream.Synchronize();
}

TEST_F(Captured, AStreamThatWaitsForItIsABranch) {
  const RawStream stream, beside;
  const RawEvent fork, join;
  std::vector<int> first, second;
  ASSERT_EQ(Capture(stream,
                    [&] {
                      Log(stream, first, 1);
                      EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
                      EXPECT_EQ(cudaStreamWaitEvent(beside, fork, 0), cudaSuccess);
                      Log(beside, second, 1);
                      Log(stream, first, 2);
                      EXPECT_EQ(cudaEventRecord(join, beside), cudaSuccess);
                      EXPECT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
                      Log(stream, first, 3);
                      Log(stream, second, 2);
                    }),
            cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(beside, fork, 0), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventQuery(fork), cudaErrorCapturedEvent);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph_, 0), cudaSuccess);
  Log(beside, second, 0);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  stream.Synchronize();
  beside.Synchronize();
  EXPECT_EQ(first, (std::vector<int>{1, 2, 3, 1, 2, 3}));
  EXPECT_THAT(second, ::testing::UnorderedElementsAre(0, 1, 2, 1, 2));
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(Captured, ABranchMustBeJoined) {
  const RawStream stream, beside;
  const RawEvent fork, join;
  std::vector<int> log;
  EXPECT_EQ(Capture(stream,
                    [&] {
                      EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
                      EXPECT_EQ(cudaStreamWaitEvent(beside, fork, 0), cudaSuccess);
                      EXPECT_EQ(cudaEventRecord(join, beside), cudaSuccess);
                      EXPECT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
                      Log(beside, log, 1);
                    }),
            cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(beside, fork, 0), cudaSuccess);
  beside.Synchronize();
  EXPECT_TRUE(log.empty());
}

TEST_F(Captured, MemoryIsNotGivenWhileAThreadCaptures) {
  const RawStream stream;
  EXPECT_EQ(Capture(stream,
                    [] {
                      void* memory = nullptr;
                      EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorStreamCaptureUnsupported);
                    }),
            cudaSuccess);
  const DeviceArray<char> later(1);
}

TEST_F(Captured, OtherStreamsGoOnMeanwhile) {
  const RawStream stream, other;
  std::vector<int> log;
  EXPECT_EQ(Capture(stream,
                    [&] {
                      Log(other, log, 1);
                      other.Synchronize();
                    }),
            cudaSuccess);
  EXPECT_EQ(log, std::vector<int>{1});
}

TEST_F(Captured, ACaptureThatIsToFailEndsAllTheSame) {
  const RawStream stream;
  EXPECT_EQ(Capture(stream, [] { FailCall(1); }), cudaErrorUnknown);
  EXPECT_EQ(failed_call(), "cudaStreamEndCapture");
  EXPECT_EQ(graph_, nullptr);
  stream.Synchronize();
}

}  // namespace
}  // namespace stagecoach::testing::cuda
