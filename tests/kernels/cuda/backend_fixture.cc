#include "tests/kernels/cuda/backend_fixture.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels {

namespace cuda = testing::cuda;

void CudaBackendTest::SetUp() { StartMachine({}); }

void CudaBackendTest::TearDown() { EXPECT_TRUE(cuda::NothingIsLeft()) << "something was left"; }

void CudaBackendTest::StartMachine(const cuda::StandInOptions& options) { cuda::Reset(options); }

CudaBackend& CudaBackendTest::Backend() {
  absl::StatusOr<CudaBackend*> backend = CudaBackend::Load();
  STAGECOACH_CHECK_OK(backend);
  return **backend;
}

int CudaBackendTest::NumGpus() { return static_cast<int>(Backend().Inspect().gpus.size()); }

std::unique_ptr<Device> CudaBackendTest::CreateDevice(int gpu) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      Backend().CreateDevice({.gpu = gpu, .name = absl::StrCat("cuda:", gpu)});
  STAGECOACH_CHECK_OK(device);
  return *std::move(device);
}

absl::Status RunJob(Device& device, absl::FunctionRef<absl::Status(Stream&)> work) {
  absl::Status status;
  device.stream().Run([&] { status = work(device.stream()); });
  return status;
}

absl::Status FinishStream(Device& device) {
  return RunJob(device, [](Stream& stream) {
    return stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); });
  });
}

absl::Status Write(Device& device, const Buffer& to, absl::Span<const int32_t> values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
  STAGECOACH_CHECK(bytes <= to.bytes(), "more values than the buffer holds");
  ASSIGN_OR_RETURN(const HostBuffer staging, device.AllocateHost(bytes));
  std::memcpy(staging.data(), values.data(), static_cast<size_t>(bytes));
  RETURN_IF_ERROR(RunJob(device, [&](Stream& stream) {
    return stream.CopyFromHost(to.data(), staging.data(), bytes);
  }));
  return FinishStream(device);
}

absl::StatusOr<std::vector<int32_t>> Read(Device& device, const Buffer& from) {
  ASSIGN_OR_RETURN(const HostBuffer staging, device.AllocateHost(from.bytes()));
  RETURN_IF_ERROR(RunJob(device, [&](Stream& stream) {
    return stream.CopyToHost(staging.data(), from.data(), from.bytes());
  }));
  RETURN_IF_ERROR(FinishStream(device));
  std::vector<int32_t> values(static_cast<size_t>(from.bytes()) / sizeof(int32_t));
  std::memcpy(values.data(), staging.data(), values.size() * sizeof(int32_t));
  return values;
}

Roadblock::Roadblock(Device& device) {
  const cudaStream_t stream = AsCuda(device.stream()).compute();
  const cudaError_t error = cuda::Enqueue(
      stream, {.name = "roadblock", .ready = [lifted = lifted_] { return *lifted; }, .run = [] {}});
  STAGECOACH_CHECK(error == cudaSuccess, "the roadblock was refused");
}

void Roadblock::Lift() {
  cuda::Locked([this] { *lifted_ = true; });
}

namespace {

// Returns how errors refer to a call that failed. The backend's launchers use their own names; all
// of them make the same call.
std::string NameInErrors(const std::string& call) {
  return call == "cudaLaunchKernelEx" || call == "cudaFuncSetAttribute" ? "Launch" : call;
}

}  // namespace

World::~World() {
  peer_copies.clear();
  timelines.clear();
  recordings.clear();
  host_buffers.clear();
  buffers.clear();
  devices.clear();
}

void ExpectEveryFailureIsClean(const cuda::StandInOptions& options, const Scenario& scenario) {
  constexpr int64_t kMostCalls = 100000;
  int64_t failures = 0;
  std::string failed;
  int64_t call = 0;
  do {
    ++call;
    ASSERT_LT(call, kMostCalls) << "the scenario does not end";
    cuda::Reset(options);
    cuda::FailCall(call);
    absl::Status status;
    {
      World world;
      status = scenario(world);
      failed = cuda::failed_call();
      // Errors while releasing are not reported, but must not leave anything behind either.
    }
    // Without memory for a graph, work is launched directly.
    if (failed.empty() || failed == "cudaGraphInstantiate") {
      EXPECT_OK(status);
    } else {
      ++failures;
      EXPECT_FALSE(status.ok()) << "call " << call << ", " << failed << ", failed unnoticed";
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(NameInErrors(failed)))
          << "call " << call << ": " << status;
    }
    EXPECT_TRUE(cuda::NothingIsLeft()) << "left by a failure of call " << call << ", " << failed;
  } while (!cuda::failed_call().empty() && !::testing::Test::HasFailure());
  EXPECT_GT(failures, 0) << "no call ever failed: this shows nothing";
}

void ExpectEveryAsynchronousFailureIsClean(const cuda::StandInOptions& options,
                                           const Scenario& scenario) {
  constexpr int64_t kMostOperations = 10000;
  int64_t failures = 0;
  bool ended_well = false;
  for (int64_t operation = 0; !ended_well && !::testing::Test::HasFailure(); ++operation) {
    ASSERT_LT(operation, kMostOperations) << "the scenario does not end";
    cuda::Reset(options);
    cuda::FailOperation(operation);
    {
      World world;
      ended_well = scenario(world).ok();
    }
    if (!ended_well) ++failures;
    EXPECT_TRUE(cuda::NothingIsLeft()) << "left by a failure of operation " << operation;
  }
  EXPECT_GT(failures, 0) << "no operation ever failed: this shows nothing";
}

}  // namespace stagecoach::kernels
