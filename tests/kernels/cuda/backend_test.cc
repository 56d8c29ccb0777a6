#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::backend_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(CudaBackendTest, IsLoadedOnce) {
  ASSERT_OK_AND_ASSIGN(CudaBackend* const first, CudaBackend::Load());
  ASSERT_OK_AND_ASSIGN(CudaBackend* const second, CudaBackend::Load());
  EXPECT_EQ(first, second);
}

TEST_F(CudaBackendTest, InspectListsTheGpus) {
  StartMachine({.gpus = 3, .memory_bytes = int64_t{64} << 20});
  const CudaSystem system = Backend().Inspect();
  ASSERT_OK(system.usable);
  ASSERT_THAT(system.gpus, SizeIs(3));
  for (const CudaGpu& gpu : system.gpus) {
    EXPECT_THAT(gpu.name, Not(IsEmpty()));
    EXPECT_THAT(gpu.bus_id, Not(IsEmpty()));
    EXPECT_GE(gpu.compute_major, 8);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_EQ(gpu.memory_bytes, int64_t{64} << 20);
  }
}

TEST_F(CudaBackendTest, FreeBytesAreThoseOfOneGpu) {
  StartMachine({.gpus = 2, .memory_bytes = int64_t{64} << 20});
  ASSERT_OK_AND_ASSIGN(const int64_t free_bytes, Backend().FreeBytes(1));
  EXPECT_EQ(free_bytes, int64_t{64} << 20);
  EXPECT_THAT(Backend().FreeBytes(2), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CudaBackendTest, InspectNamesLibrariesAndVersions) {
  const CudaSystem system = Backend().Inspect();
  EXPECT_THAT(system.backend_path, HasSubstr("stagecoach_cuda"));
  EXPECT_THAT(system.driver, MatchesRegex(".*for CUDA [0-9]+\\.[0-9]+"));
  EXPECT_THAT(system.runtime, MatchesRegex("[0-9]+\\.[0-9]+"));
  EXPECT_THAT(system.cublaslt, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(system.cudnn, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(system.nccl, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_F(CudaBackendTest, InspectSaysThatThereIsNoDriver) {
  StartMachine({.driver = false});
  const CudaSystem system = Backend().Inspect();
  EXPECT_THAT(system.gpus, IsEmpty());
  EXPECT_THAT(system.driver, IsEmpty());
  EXPECT_THAT(system.runtime, Not(IsEmpty()));
  EXPECT_THAT(system.usable, StatusIs(absl::StatusCode::kUnavailable,
                                      AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("install"),
                                            Not(HasSubstr("\n")))));
}

TEST_F(CudaBackendTest, InspectSaysThatThereIsNoGpu) {
  // The stand-in's machine always has GPUs; but when this call fails, it reports none.
  CudaSystem system;
  for (int64_t call = 1; testing::cuda::failed_call() != "cudaGetDeviceCount"; ++call) {
    StartMachine({});
    testing::cuda::FailCall(call);
    system = Backend().Inspect();
    ASSERT_NE(testing::cuda::failed_call(), "") << "GPUs are not counted";
  }
  EXPECT_THAT(system.gpus, IsEmpty());
  EXPECT_THAT(system.usable,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES"))));
}

TEST_F(CudaBackendTest, NoDeviceWithoutADriver) {
  StartMachine({.driver = false});
  EXPECT_THAT(Backend().CreateDevice({}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no NVIDIA driver")));
}

class CudaEnvironmentTest : public CudaBackendTest {
 protected:
  // Returns the device's status while the variable has that value.
  static absl::Status CreatedWith(const char* name, const char* value) {
    setenv(name, value, /*replace=*/1);
    const absl::Status created = Backend().CreateDevice({}).status();
    EXPECT_EQ(Backend().Inspect().usable, created);
    unsetenv(name);
    return created;
  }
};

TEST_F(CudaEnvironmentTest, VariablesThatChangeResultsAreRefused) {
  constexpr std::pair<const char*, const char*> kRefused[] = {
      {"NVIDIA_TF32_OVERRIDE", "1"},
      {"NVIDIA_TF32_OVERRIDE", "0"},
      {"CUBLAS_EMULATE_SINGLE_PRECISION", "1"},
      {"CUBLAS_EMULATE_DOUBLE_PRECISION", "1"},
      {"CUBLAS_EMULATION_STRATEGY", "eager"},
      {"CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT", "39"},
      {"CUBLASLT_HEURISTICS_LUT_FILE", "/tmp/table"}};
  for (const auto& [name, value] : kRefused) {
    StartMachine({});
    EXPECT_THAT(CreatedWith(name, value),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(name), HasSubstr(value), HasSubstr("; unset it"),
                               Not(HasSubstr("\n")))));
    EXPECT_EQ(testing::cuda::CallsByName().count("cudaMemGetInfo"), 0) << "a context was made";
  }
}

TEST_F(CudaEnvironmentTest, OtherVariablesAreNot) {
  constexpr std::pair<const char*, const char*> kAllowed[] = {
      {"CUBLASLT_LOG_LEVEL", "2"},
      {"CUBLASLT_LOG_MASK", "1"},
      {"CUBLASLT_HEURISTICS_CACHE_CAPACITY", "100"},
      {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
      {"CUBLAS_EMULATE_SINGLE_PRECISION", "0"},
      {"CUBLAS_EMULATE_DOUBLE_PRECISION", "0"}};
  for (const auto& [name, value] : kAllowed) EXPECT_OK(CreatedWith(name, value)) << name;
}

TEST_F(CudaBackendTest, NoDeviceOnAGpuThatIsNotThere) {
  StartMachine({.gpus = 2});
  EXPECT_THAT(Backend().CreateDevice({.gpu = 2, .name = "cuda:2"}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no GPU 2"), HasSubstr("cuda:2"), HasSubstr("2 GPUs"))));
}

TEST_F(CudaBackendTest, RefusesNegativeOptions) {
  EXPECT_THAT(Backend().CreateDevice({.gpu = -1}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Backend().CreateDevice({.memory_limit_bytes = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CudaBackendTest, GroupsOfCommunicatorsHaveIdsOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Backend().NewCommunicatorId());
  ASSERT_OK_AND_ASSIGN(const std::string second, Backend().NewCommunicatorId());
  EXPECT_NE(first, second);
}

TEST_F(CudaBackendTest, InspectSurvivesEveryFailure) {
  CudaBackend& backend = Backend();
  std::string failed;
  int64_t call = 0;
  do {
    ++call;
    testing::cuda::Reset({.gpus = 2});
    testing::cuda::FailCall(call);
    const CudaSystem system = backend.Inspect();
    failed = testing::cuda::failed_call();
    // Either there are GPUs, or there is a reason for having none.
    EXPECT_EQ(system.usable.ok(), !system.gpus.empty()) << call << ": " << failed;
  } while (!failed.empty());
  EXPECT_GT(call, 4);
}

}  // namespace
}  // namespace stagecoach::kernels::backend_test
