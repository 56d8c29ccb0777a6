#include "kernels/device.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::device_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using CudaDeviceTest = CudaBackendTest;

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  ASSERT_OK_AND_ASSIGN(const auto device,
                       Backend().CreateDevice({.gpu = 1,
                                               .name = "cuda:7",
                                               .memory_limit_bytes = 1 << 20,
                                               .precision = Precision::kBfloat16}));
  EXPECT_EQ(device->kind(), DeviceKind::kCuda);
  EXPECT_EQ(device->precision(), Precision::kBfloat16);
  EXPECT_EQ(device->activation_type(), DType::kBfloat16);
  EXPECT_EQ(device->name(), "cuda:7");
  EXPECT_EQ(device->memory_limit_bytes(), 1 << 20);
  EXPECT_FALSE(device->memory_is_host());
}

TEST_F(CudaDeviceTest, ABuildWithoutCodeForTheGpuIsRefused) {
  for (const cudaError_t error :
       {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction}) {
    for (const bool memory_operations : {true, false}) {
      StartMachine({.memory_operations = memory_operations, .launch_error = error});
      EXPECT_THAT(Backend().CreateDevice({.name = "cuda:0"}),
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr("cuda:0"), HasSubstr("no code for"),
                                 HasSubstr("compute capability 9.0"), HasSubstr("cudaError"),
                                 HasSubstr("build it with -DCMAKE_CUDA_ARCHITECTURES=90"),
                                 Not(HasSubstr("\n")))));
      EXPECT_EQ(testing::cuda::live().total(), 0);
    }
  }
}

TEST_F(CudaDeviceTest, AnotherErrorOfALaunchIsToldAsItIs) {
  StartMachine({.launch_error = cudaErrorLaunchOutOfResources});
  EXPECT_THAT(
      Backend().CreateDevice({}),
      StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("cudaErrorLaunchOutOfResources"),
                                                  Not(HasSubstr("CMAKE_CUDA_ARCHITECTURES")))));
}

TEST_F(CudaDeviceTest, AGpuThatRunsNoKernelIsRefused) {
  StartMachine({.kernels_run = false});
  EXPECT_THAT(Backend().CreateDevice({}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("kernels do nothing")));
}

TEST_F(CudaDeviceTest, MemoryIsZeroAtOnce) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    StartMachine({.seed = seed, .delay = 0.9});
    // Another device of the GPU reads it, in its own order.
    const auto device = CreateDevice(), reader = CreateDevice();
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(4096));
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(*reader, buffer));
    EXPECT_THAT(values, Each(0)) << "seed " << seed;
  }
}

TEST_F(CudaDeviceTest, AddressesAreMultiplesOf256) {
  const auto device = CreateDevice();
  for (const int64_t bytes : {4, 1000, 4097}) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0U) << bytes << " bytes";
  }
}

TEST_F(CudaDeviceTest, AllocationDoesNotWaitForTheStream) {
  const auto device = CreateDevice();
  Buffer buffer;
  Roadblock roadblock(*device);
  ASSERT_OK_AND_ASSIGN(buffer, device->Allocate(4096));
  roadblock.Lift();
}

TEST_F(CudaDeviceTest, HostMemoryIsZero) {
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const HostBuffer buffer, device->AllocateHost(1000));
  EXPECT_THAT(std::vector<std::byte>(buffer.data(), buffer.data() + 1000), Each(std::byte{0}));
}

TEST_F(CudaDeviceTest, BudgetIsKept) {
  ASSERT_OK_AND_ASSIGN(const auto device,
                       Backend().CreateDevice({.name = "cuda:0", .memory_limit_bytes = 1000}));
  ASSERT_OK_AND_ASSIGN(const Buffer most, device->Allocate(900));
  EXPECT_THAT(device->Allocate(101), StatusIs(absl::StatusCode::kResourceExhausted,
                                              AllOf(HasSubstr("cuda:0"), HasSubstr("900 B"))));
  EXPECT_OK(device->Allocate(100));
}

TEST_F(CudaDeviceTest, WithoutALimitTheBudgetIsWhatIsAvailable) {
  StartMachine({.memory_bytes = int64_t{8} << 20});
  const auto device = CreateDevice();
  EXPECT_GT(device->memory_limit_bytes(), 0);
  EXPECT_LE(device->memory_limit_bytes(), int64_t{8} << 20);
  ASSERT_OK_AND_ASSIGN(const Buffer half, device->Allocate(device->memory_limit_bytes() / 2));
  const auto other = CreateDevice();
  EXPECT_LT(other->memory_limit_bytes(), (int64_t{8} << 20) - half.bytes());
}

TEST_F(CudaDeviceTest, AGpuThatIsFullSaysSo) {
  StartMachine({.memory_bytes = int64_t{8} << 20});
  const auto device = CreateDevice(), other = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer most, device->Allocate(int64_t{6} << 20));
  EXPECT_THAT(other->Allocate(int64_t{4} << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cuda:0"), HasSubstr("4.2 MB asked"), HasSubstr("free"))));
  EXPECT_EQ(other->used_bytes(), 0);
}

TEST_F(CudaDeviceTest, ABudgetBeyondWhatIsFreeIsRefused) {
  StartMachine({.memory_bytes = int64_t{8} << 20});
  EXPECT_THAT(Backend().CreateDevice({.name = "cuda:0", .memory_limit_bytes = int64_t{9} << 20}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cuda:0"), HasSubstr("9.4 MB"), HasSubstr("free"))));
}

// A process's first view of a GPU counts for its whole life: no other test uses this GPU.
TEST_F(CudaDeviceTest, MeasuresTheMemoryOfTheGpu) {
  constexpr int kGpu = 7;
  StartMachine({.gpus = kGpu + 1, .context_bytes = 30000});
  ASSERT_OK_AND_ASSIGN(const auto device,
                       Backend().CreateDevice({.gpu = kGpu, .memory_limit_bytes = 1000}));
  const auto other = CreateDevice(kGpu);
  const AcceleratorMemory before = device->MeasureMemory().value();
  EXPECT_EQ(before.allocated_bytes, 0);
  EXPECT_EQ(before.context_bytes, 30000);
  void* of_a_library = nullptr;
  ASSERT_EQ(cudaSetDevice(kGpu), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&of_a_library, 2048), cudaSuccess);
  {
    ASSERT_OK_AND_ASSIGN(const Buffer table, device->AllocateTable(5120));
    ASSERT_OK_AND_ASSIGN(const Buffer counted, other->Allocate(512));
    EXPECT_EQ(device->used_bytes(), 0);
    for (const Device* const each : {device.get(), other.get()}) {
      EXPECT_EQ(each->MeasureMemory().value(),
                (AcceleratorMemory{5120 + 512, 30000, before.library_bytes + 2048}));
    }
  }
  EXPECT_EQ(cudaFree(of_a_library), cudaSuccess);
  EXPECT_EQ(device->MeasureMemory().value(), before);
}

TEST_F(CudaDeviceTest, AnyThreadMayAllocate) {
  constexpr int kThreads = 4, kRounds = 20;
  const auto device = CreateDevice(2);
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&device, &result = results[static_cast<size_t>(i)]] {
      for (int round = 0; result.ok() && round < kRounds; ++round) {
        const absl::StatusOr<Buffer> buffer = device->Allocate(1024);
        const absl::StatusOr<HostBuffer> host = device->AllocateHost(64);
        result = buffer.ok() ? host.status() : buffer.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, Each(testing::IsOk()));
  EXPECT_EQ(device->used_bytes(), 0);
}

// A job of one device may allocate and use memory of another device, on another GPU.
TEST_F(CudaDeviceTest, AJobMayAllocateOnAnotherGpu) {
  const auto device = CreateDevice(0), other = CreateDevice(1);
  ASSERT_OK_AND_ASSIGN(const Buffer to, device->Allocate(4));
  Buffer elsewhere;
  ASSERT_OK(RunJob(*device, [&](Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(elsewhere, other->Allocate(4));
    return stream.Report(1);
  }));
  ASSERT_OK(FinishStream(*device));
  EXPECT_EQ(device->stream().reported(), 1);
}

TEST_F(CudaDeviceTest, TellsWhatItChoseWhereBitsDependOnIt) {
  const auto device = CreateDevice(0), other = CreateDevice(1);
  EXPECT_THAT(device->choices(), ElementsAre(StartsWith("cuBLASLt: ")));
  const LinearShape shape{.rows = 8, .inputs = 16, .outputs = 24};
  for (Device* const each : {device.get(), other.get()}) {
    ASSERT_OK(each->ops().Create(shape));
  }
  // One choice for forward, and others for the gradients of inputs and weights.
  EXPECT_EQ(device->choices().size(), 1U + 3U);
  EXPECT_EQ(device->choices(), other->choices());
}

TEST_F(CudaDeviceTest, EveryFailureIsClean) {
  CudaBackend& backend = Backend();
  const Scenario scenario = [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> created, backend.CreateDevice({.gpu = 0}));
    world.devices.push_back(std::move(created));
    Device& device = *world.devices[0];
    for (int i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(256));
      world.buffers.push_back(std::move(buffer));
      ASSIGN_OR_RETURN(HostBuffer host, device.AllocateHost(256));
      world.host_buffers.push_back(std::move(host));
    }
    ASSIGN_OR_RETURN(Buffer table, device.AllocateTable(64));
    world.buffers.push_back(std::move(table));
    ASSIGN_OR_RETURN(std::unique_ptr<Timeline> timeline, device.CreateTimeline(3));
    world.timelines.push_back(std::move(timeline));
    ASSIGN_OR_RETURN(std::unique_ptr<Recording> recording, device.CreateRecording());
    world.recordings.push_back(std::move(recording));
    std::memset(world.host_buffers[0].data(), 0x5A, 256);
    for (int round = 0; round < 3; ++round) {
      RETURN_IF_ERROR(RunJob(device, [&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(
            stream.CopyFromHost(world.buffers[0].data(), world.host_buffers[0].data(), 256));
        RETURN_IF_ERROR(stream.Replay(*world.recordings[0], [&] {
          return stream.Copy(world.buffers[1].data(), world.buffers[0].data(), 256);
        }));
        RETURN_IF_ERROR(world.timelines[0]->Mark(round));
        RETURN_IF_ERROR(
            stream.CopyToHost(world.host_buffers[1].data(), world.buffers[1].data(), 256));
        return stream.Report(round);
      }));
      RETURN_IF_ERROR(FinishStream(device));
      RETURN_IF_ERROR(world.timelines[0]->At(round).status());
    }
    const bool same =
        std::memcmp(world.host_buffers[0].data(), world.host_buffers[1].data(), 256) == 0;
    return same ? absl::OkStatus() : absl::DataLossError("the bytes that came back are others");
  };
  ExpectEveryFailureIsClean({.gpus = 1}, scenario);
  ExpectEveryAsynchronousFailureIsClean({.gpus = 1}, scenario);
}

}  // namespace
}  // namespace stagecoach::kernels::device_test
