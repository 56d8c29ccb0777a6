#include "tests/testing/cuda/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/cuda/raw_device.h"
#include "tests/testing/cuda/stand_in_fixture.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::IsEmpty;

// ---- Order.

TEST_F(StandIn, AStreamKeepsItsOrder) {
  const RawStream stream;
  std::vector<int> log, expected(50);
  for (int i = 0; i < 50; ++i) Log(stream, log, i);
  stream.Synchronize();
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(log, expected);
}

// A thread that fills the queue of a waiting stream is blocked until there is room again.
TEST_F(StandIn, AThreadBlocksInAFullQueue) {
  const RawStream stream;
  bool ready = false;
  std::atomic<int> enqueued = 0;
  std::vector<int> log;
  ASSERT_EQ(Enqueue(stream, {.ready = [&] { return ready; }, .run = [] {}}), cudaSuccess);
  std::thread issuer([&] {
    for (int i = 0; i < kQueueCapacity + 100; ++i) {
      Log(stream, log, i);
      Progress();
      ++enqueued;
    }
  });
  while (enqueued < kQueueCapacity - 1) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(enqueued, kQueueCapacity - 1);
  Locked([&] { ready = true; });
  issuer.join();
  stream.Synchronize();
  EXPECT_EQ(log.size(), size_t{kQueueCapacity} + 100);
}

TEST_F(StandIn, StreamsAreInNoOrder) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Reset({.seed = seed, .delay = 0.9});
    const RawStream a, b, c;
    std::vector<int> log;
    Log(a, log, 0);
    Log(b, log, 1);
    Log(c, log, 2);
    for (const RawStream* stream : {&a, &b, &c}) stream->Synchronize();
    orders.insert(log);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST_F(StandIn, TheSeedDecidesTheOrder) {
  std::vector<int> logs[2];
  for (std::vector<int>& log : logs) {
    Reset({.seed = 5});
    // The order of streams in memory must not matter.
    const RawStream streams[4];
    for (int i = 0; i < 40; ++i) Log(streams[i % 4], log, i);
    for (const RawStream& stream : streams) stream.Synchronize();
  }
  EXPECT_EQ(logs[0], logs[1]);
}

TEST_F(StandIn, WithoutDelayEverythingIsDoneAtOnce) {
  Reset({.delay = 0});
  const RawStream stream;
  std::vector<int> log;
  Log(stream, log, 1);
  EXPECT_EQ(log, std::vector<int>{1});
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST_F(StandIn, AStreamIsNotReadyBeforeItsWorkIs) {
  const RawStream stream;
  bool ready = false, done = false;
  ASSERT_EQ(Enqueue(stream,
                    {.name = "waits", .ready = [&] { return ready; }, .run = [&] { done = true; }}),
            cudaSuccess);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  Locked([&] { ready = true; });
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  EXPECT_TRUE(done);
}

TEST_F(StandIn, SynchronizeWaitsForWhatAnotherThreadDoes) {
  const RawStream stream;
  bool ready = false;
  ASSERT_EQ(Enqueue(stream, {.ready = [&] { return ready; }, .run = [] {}}), cudaSuccess);
  std::thread other([&] { Locked([&] { ready = true; }); });
  stream.Synchronize();
  other.join();
  EXPECT_TRUE(ready);
}

TEST_F(StandIn, EventsOrderStreamsOfDifferentGpus) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Reset({.seed = seed, .delay = 0.8});
    const RawStream first;
    const RawEvent event;
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const RawStream second;
    std::vector<int> log;
    Log(first, log, 0);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    Log(second, log, 1);
    second.Synchronize();
    EXPECT_EQ(log, (std::vector<int>{0, 1}));
    first.Synchronize();
  }
}

TEST_F(StandIn, AWaitIsForTheLatestRecordAtItsTime) {
  Reset({.delay = 0});
  const RawStream recorder, waiter;
  const RawEvent event;
  bool ready = false;
  ASSERT_EQ(cudaEventRecord(event, recorder), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(waiter, event, 0), cudaSuccess);
  ASSERT_EQ(Enqueue(recorder, {.ready = [&] { return ready; }, .run = [] {}}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, recorder), cudaSuccess);
  // The wait was for the first record; the event itself now stands for the second.
  EXPECT_EQ(cudaStreamQuery(waiter), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  Locked([&] { ready = true; });
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(StandIn, AnEventThatWasNeverRecordedIsNotWaitedFor) {
  const RawStream stream;
  const RawEvent event;
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  stream.Synchronize();
}

TEST_F(StandIn, TimeGoesForward) {
  const RawStream stream;
  const RawEvent a, b, untimed(cudaEventDisableTiming);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, a, b), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(a, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(b, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  stream.Synchronize();
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, a, b), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, a, untimed), cudaErrorInvalidResourceHandle);
}

TEST_F(StandIn, WorkOfADestroyedStreamIsDone) {
  Reset({.delay = 0.99});
  bool done = false;
  const RawEvent event;
  {
    const RawStream stream;
    ASSERT_EQ(Enqueue(stream, {.run = [&] { done = true; }}), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  }
  EXPECT_EQ(live().streams, 0);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_TRUE(done);
}

// ---- Existing objects.

TEST_F(StandIn, CountsWhatExists) {
  {
    const RawStream stream;
    const RawEvent event, other_event;
    const DeviceArray<char> device(1);
    const PinnedArray<char> a(1), b(1), c(1);
    const Live now = live();
    EXPECT_EQ(now.streams, 1);
    EXPECT_EQ(now.events, 2);
    EXPECT_EQ(now.allocations, 1);
    EXPECT_EQ(now.host_allocations, 3);
    EXPECT_EQ(now.total(), 7);
  }
  EXPECT_EQ(live().total(), 0);
}

TEST_F(StandIn, GivingBackTwiceIsAnError) {
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  void* memory;
  ASSERT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST_F(StandIn, DescribesItsGpus) {
  Reset({.gpus = 3, .memory_bytes = 1 << 20});
  int count = 0, driver = 0, runtime = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  ASSERT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  ASSERT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_GE(driver, runtime);
  std::set<std::string> bus_ids;
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, gpu), cudaSuccess);
    EXPECT_EQ(properties.totalGlobalMem, size_t{1} << 20);
    char bus_id[32];
    ASSERT_EQ(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), gpu), cudaSuccess);
    bus_ids.insert(bus_id);
  }
  EXPECT_EQ(bus_ids.size(), 3u);
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 3), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
}

TEST_F(StandIn, PeersAreEnabledOnce) {
  int can = 0;
  ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
}

TEST_F(StandIn, EveryThreadHasACurrentGpuOfItsOwn) {
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  int gpu = -1;
  std::thread([&] { cudaGetDevice(&gpu); }).join();
  EXPECT_EQ(gpu, 0);
  ASSERT_EQ(cudaGetDevice(&gpu), cudaSuccess);
  EXPECT_EQ(gpu, 2);
}

// ---- Failures.

TEST_F(StandIn, WithoutADriverEveryCallSaysSo) {
  Reset({.driver = false});
  int count = 77, version = 77;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 77);
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 0);
  EXPECT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, CUDART_VERSION);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(CurrentGpu(), -1);
}

TEST_F(StandIn, TheCallThatIsToFailFails) {
  const int64_t before = calls();
  FailCall(3);
  int gpu;
  EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
  EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
  EXPECT_THAT(failed_call(), IsEmpty());
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(failed_call(), "cudaMalloc");
  EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
  EXPECT_EQ(calls(), before + 4);
}

TEST_F(StandIn, GivingBackIsNoCallThatFails) {
  const int64_t before = calls();
  {
    const RawStream stream;
    FailCall(1);
  }
  EXPECT_EQ(calls(), before + 1);
}

TEST_F(StandIn, AFailedOperationShowsAtAllLaterCallsForItsGpu) {
  Reset({.gpus = 2, .delay = 0});
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  FailOperation(1);
  std::vector<int> log;
  Log(stream, log, 1);
  Log(stream, log, 2);
  EXPECT_EQ(Enqueue(stream, {.run = [] {}}), cudaErrorIllegalAddress);
  EXPECT_EQ(log, std::vector<int>{1});
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 4, stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  // The other GPU works, and existing objects can be released.
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  { const DeviceArray<char> other(1); }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(live().total(), 0);
  Reset({});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(StandIn, EveryErrorThatItReturnsHasAName) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNotReady), "device not ready");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
