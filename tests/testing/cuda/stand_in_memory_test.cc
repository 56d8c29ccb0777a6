#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/testing/cuda/emulator/emulator_test_kernels.h"
#include "tests/testing/cuda/raw_device.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/cuda/stand_in_fixture.h"

namespace stagecoach::testing::cuda {
namespace {

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

TEST_F(StandIn, RowsAreCopiedAndFilledWithoutWhatIsBetween) {
  const RawStream stream;
  const DeviceArray<float> a(stream, {1, 2, 3, 4, 5});
  const DeviceArray<float> b(stream, {9, 9, 9, 9, 9, 9});
  constexpr size_t kPair = 2 * sizeof(float), kTriple = 3 * sizeof(float);
  const auto copy = [&](size_t rows, size_t row_bytes) {
    return cudaMemcpy2DAsync(b.data(), kTriple, a.data(), kPair, row_bytes, rows,
                             cudaMemcpyDeviceToDevice, stream);
  };
  ASSERT_EQ(copy(2, kPair), cudaSuccess);
  EXPECT_EQ(b.Download(stream), (std::vector<float>{1, 2, 9, 3, 4, 9}));
  EXPECT_EQ(copy(3, kPair), cudaErrorInvalidValue);
  EXPECT_EQ(copy(1, kTriple), cudaErrorInvalidPitchValue);
  const auto clear = [&](size_t rows) {
    return cudaMemset2DAsync(b.data(), kTriple, 0, sizeof(float), rows, stream);
  };
  ASSERT_EQ(clear(2), cudaSuccess);
  EXPECT_EQ(b.Download(stream), (std::vector<float>{0, 2, 9, 0, 4, 9}));
  EXPECT_EQ(clear(3), cudaErrorInvalidValue);
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
        Reset({.patience = absl::Milliseconds(10)});
      },
      "1 objects left");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
