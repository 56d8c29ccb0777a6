#include "tests/testing/cuda/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/cuda/emulator_test_kernels.h"
#include "tests/testing/cuda/raw_device.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::IsEmpty;

class StandIn : public ::testing::Test {
 protected:
  StandIn() { Reset({}); }
  ~StandIn() override {
    EXPECT_EQ(live().total(), 0);
    FailCall(0);
  }
};

// An event of the current GPU.
class RawEvent {
 public:
  explicit RawEvent(unsigned flags = cudaEventDefault) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
  }
  ~RawEvent() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Appends `value` to `log` in the stream's order.
void Log(cudaStream_t stream, std::vector<int>& log, int value) {
  ASSERT_EQ(Enqueue(stream, {.name = "log", .run = [&log, value] { log.push_back(value); }}),
            cudaSuccess);
  Progress();
}

// ---- Order.

TEST_F(StandIn, AStreamKeepsItsOrder) {
  const RawStream stream;
  std::vector<int> log, expected(50);
  for (int i = 0; i < 50; ++i) Log(stream, log, i);
  stream.Synchronize();
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(log, expected);
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
    // Which stream comes first in memory must not matter.
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

// ---- Memory.

TEST_F(StandIn, CopiesGoWhereTheyShould) {
  const RawStream stream;
  const std::vector<float> values = {1, 2, 3, 4, 5};
  const DeviceArray<float> a(stream, values), b(5);
  ASSERT_EQ(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice, stream),
            cudaSuccess);
  EXPECT_EQ(b.Download(stream), values);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const DeviceArray<float> c(5);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyPeerAsync(c.data(), 1, b.data(), 0, b.bytes(), stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(b.data(), 0, 2 * sizeof(float), stream), cudaSuccess);
  EXPECT_EQ(c.Download(stream), values);
  EXPECT_EQ(b.Download(stream), (std::vector<float>{0, 0, 3, 4, 5}));
}

TEST_F(StandIn, RefusesCopiesThatCudaWouldMakeWrongOrSlow) {
  const RawStream stream;
  const DeviceArray<float> device(4);
  const PinnedArray<float> host(4);
  std::vector<float> pageable(4);
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  };
  EXPECT_EQ(copy(device.data(), host.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(copy(device.data(), host.data(), 16, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(copy(device.data(), host.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data(), host.data(), 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data() + 1, host.data(), 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data(), pageable.data(), 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(copy(device.data() + 1, device.data(), 12, cudaMemcpyDeviceToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyPeerAsync(device.data(), 1, device.data(), 0, 16, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device.data(), 0, 17, stream), cudaErrorInvalidValue);
}

TEST_F(StandIn, MemoryStartsAsNaN) {
  const RawStream stream;
  const DeviceArray<float> device(100);
  for (const float value : device.Download(stream)) ASSERT_TRUE(std::isnan(value));
}

TEST_F(StandIn, AllocationsAreAlignedAndApart) {
  const DeviceArray<char> a(1), b(300), c(256);
  for (const DeviceArray<char>* array : {&a, &b, &c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array->data()) % 256, 0u);
    EXPECT_EQ(GpuOfMemory(array->data(), static_cast<int64_t>(array->size())), 0);
    EXPECT_EQ(GpuOfMemory(array->data(), static_cast<int64_t>(array->size()) + 1), -1);
    EXPECT_EQ(GpuOfMemory(array->data() - 1, 1), -1);
  }
}

TEST_F(StandIn, AGpuHasSoMuchMemoryAndNoMore) {
  Reset({.gpus = 2, .memory_bytes = 1 << 20});
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, (1 << 20) + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  {
    const DeviceArray<char> whole(1 << 20);
    EXPECT_EQ(cudaMalloc(&address, 1), cudaErrorMemoryAllocation);
    size_t free_bytes = 1, total_bytes = 0;
    ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    EXPECT_EQ(free_bytes, 0u);
    EXPECT_EQ(total_bytes, size_t{1} << 20);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const DeviceArray<char> other_gpus(1 << 20);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  const DeviceArray<char> again(1 << 20);
}

TEST_F(StandIn, MemoryIsUsedAgain) {
  Reset({.gpus = 1, .memory_bytes = 1 << 20});
  for (size_t i = 0; i < 1000; ++i) const DeviceArray<char> array(1 + i * 7919 % (1 << 20));
}

TEST_F(StandIn, FreeingWaitsForTheWorkOfTheGpu) {
  Reset({.delay = 0.95});
  const RawStream stream;
  bool done = false;
  {
    const DeviceArray<char> array(1);
    ASSERT_EQ(Enqueue(stream, {.run = [&] { done = true; }}), cudaSuccess);
  }
  EXPECT_TRUE(done);
}

TEST_F(StandIn, PinnedMemoryIsTheDevicesToo) {
  const RawStream stream;
  const PinnedArray<float> host(std::vector<float>{5});
  void* device = nullptr;
  ASSERT_EQ(cudaHostGetDevicePointer(&device, host.data(), 0), cudaSuccess);
  ASSERT_EQ(LaunchTwice(stream, static_cast<float*>(device), 1), cudaSuccess);
  stream.Synchronize();
  EXPECT_EQ(host.values(), std::vector<float>{10});
  float pageable = 0;
  EXPECT_EQ(cudaHostGetDevicePointer(&device, &pageable, 0), cudaErrorInvalidValue);
}

using StandInDeathTest = StandIn;

TEST_F(StandInDeathTest, HostCodeThatReadsDeviceMemoryDies) {
  const RawStream stream;
  const DeviceArray<float> device(stream, {1, 2, 3});
  EXPECT_DEATH(EXPECT_EQ(*const_cast<volatile float*>(device.data()), 1), "");
}

TEST_F(StandInDeathTest, HostCodeThatWritesDeviceMemoryDies) {
  const RawStream stream;
  const DeviceArray<float> device(stream, {1, 2, 3});
  EXPECT_DEATH(*const_cast<volatile float*>(device.data()) = 1, "");
}

TEST_F(StandInDeathTest, AWriteBesidePinnedMemoryDies) {
  EXPECT_DEATH(
      {
        const PinnedArray<char> host(10);
        const_cast<volatile char*>(host.data())[10] = 1;
      },
      "after an allocation of host memory|AddressSanitizer");
}

TEST_F(StandInDeathTest, ResetWithSomethingLeftAborts) {
  EXPECT_DEATH(
      {
        cudaStream_t stream;
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
        Reset({});
      },
      "1 objects left");
}

// ---- What exists.

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
  // The other GPU is in order, and what there was can be given back.
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
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(123456)), "unrecognized error code");
}

// ---- Graphs.

class Captured : public StandIn {
 protected:
  // What `issue` puts into the stream, as a graph.
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
  // Launches that are pending outlive the graph.
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(x.Download(stream), (std::vector<float>{4, 1, 12}));
}

TEST_F(Captured, WhatWaitsForTheStreamSpoilsTheCapture) {
  const RawStream stream;
  const RawEvent event;
  for (const std::function<cudaError_t()>& call : std::vector<std::function<cudaError_t()>>{
           [&] { return cudaStreamSynchronize(stream); }, [&] { return cudaStreamQuery(stream); },
           [&] { return cudaEventRecord(event, stream); },
           [&] { return cudaStreamWaitEvent(stream, event, 0); }}) {
    EXPECT_EQ(Capture(stream, [&] { EXPECT_NE(call(), cudaSuccess); }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
  }
  stream.Synchronize();
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
