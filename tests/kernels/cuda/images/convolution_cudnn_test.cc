#include "kernels/cuda/ops/images/convolution_cudnn.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/blas_lt_fixture.h"
#include "tests/testing/cuda/cudnn/faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

// The choice of cuDNN's engines for convolutions. tests/kernels/ops/convolution_test.cc tests what
// they compute.
namespace stagecoach::kernels::convolution_cudnn_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr ConvolutionShape kShape = {
    .samples = 2, .inputs = 8, .height = 5, .width = 4, .outputs = 16, .kernel = 3, .padding = 1};
// An hour of the GPU's clock: more than anything takes.
constexpr int64_t kHour = 3600000000000;

class CudnnConvolutionTest : public BlasLtTest {
 protected:
  absl::StatusOr<std::unique_ptr<Device>> TryDevice(const std::string& file,
                                                    Precision precision) const {
    return Backend().CreateDevice({.precision = precision, .tuning_file = file});
  }
  // Returns what a new device reports of convolutions once it has the operation, each starting at
  // its pass.
  std::vector<std::string> Choices(const std::string& file,
                                   Precision precision = Precision::kBfloat16,
                                   const ConvolutionShape& shape = kShape) const {
    const auto device = TryDevice(file, precision);
    STAGECOACH_CHECK_OK(device);
    STAGECOACH_CHECK_OK((*device)->ops().Create(shape));
    std::vector<std::string> convolutions;
    for (const std::string& text : (*device)->choices()) {
      if (absl::StartsWith(text, "convolution ")) {
        convolutions.push_back(text.substr(std::string("convolution ").size()));
      }
    }
    return convolutions;
  }
  static std::string Told(const std::string& pass, int engine, int knob,
                          const std::string& precision = "bf16") {
    return absl::StrCat(
        pass, " ", precision, " 2x8x5x4 to 16, kernel 3, stride 1, padding 1, groups 1",
        pass == "forward" ? ", bias" : "",
        ", on CUDA stand-in, 4 multiprocessors: cudnn 91900, engine ", engine, ", knob24 ", knob);
  }
};

TEST_F(CudnnConvolutionTest, WithoutATuningFileTheFirstThatMayBeUsedIsTaken) {
  EXPECT_THAT(Choices(""),
              ElementsAre(Told("dw", 1, 16), Told("dx", 67, 1), Told("forward", 62, 7)));
  // Without rounding of operands, only the last engines qualify.
  EXPECT_THAT(Choices("", Precision::kFloat32),
              ElementsAre(Told("dw", 28, 0, "fp32"), Told("dx", 74, 0, "fp32"),
                          Told("forward", 28, 0, "fp32")));
  EXPECT_THAT(Choices("", Precision::kTf32),
              ElementsAre(Told("dw", 68, 0, "tf32"), Told("dx", 67, 1, "tf32"),
                          Told("forward", 62, 7, "tf32")));
}

TEST_F(CudnnConvolutionTest, TheFastestIsTakenAndKept) {
  cuda::SetCudnnFaults({.extra_ns = {{2, -kHour}, {45, -kHour}, {74, -kHour}}});
  const std::vector<std::string> choices = Choices(tuning_file());
  EXPECT_THAT(choices, ElementsAre(Told("dw", 2, 0), Told("dx", 74, 0), Told("forward", 45, 0)));
  EXPECT_THAT(ReadTuning()["choices"], SizeIs(3));
  cuda::SetCudnnFaults({.extra_ns = {{2, kHour}, {45, kHour}, {74, kHour}}});
  EXPECT_EQ(Choices(tuning_file()), choices);
}

TEST_F(CudnnConvolutionTest, EnginesThatDoNotWorkArePassedOver) {
  for (const cuda::CudnnFaults& faults :
       {cuda::CudnnFaults{.uncompiled = {62, 67, 1}}, cuda::CudnnFaults{.failing = {62, 67, 1}},
        cuda::CudnnFaults{.greedy = {62, 67, 1}}}) {
    const std::vector<std::string> expected = {Told("dw", 2, 0), Told("dx", 74, 0),
                                               Told("forward", 45, 0)};
    std::filesystem::remove(tuning_file());
    cuda::SetCudnnFaults({.extra_ns = {{62, -kHour}, {67, -kHour}, {1, -kHour}}});
    Choices(tuning_file());
    cuda::CudnnFaults slow = faults;
    slow.extra_ns = {{28, kHour}};
    cuda::SetCudnnFaults(slow);
    EXPECT_EQ(Choices(""), expected);
    // A choice in the file that does not run is measured again.
    EXPECT_EQ(Choices(tuning_file()), expected);
  }
}

TEST_F(CudnnConvolutionTest, WithoutAnEngineThereIsNoConvolution) {
  cuda::SetCudnnFaults({.uncompiled = {1, 2}});
  for (const std::string& file : {std::string(), tuning_file()}) {
    const auto device = TryDevice(file, Precision::kBfloat16);
    ASSERT_OK(device);
    EXPECT_THAT((*device)->ops().Create(kShape),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("convolution dw bf16 2x8x5x4 to 16"),
                               HasSubstr("does not compile"), Not(HasSubstr("\n")))));
  }
}

TEST_F(CudnnConvolutionTest, NeedsALibraryThatItKnows) {
  for (const auto& [version, why] : std::map<int64_t, std::string>{
           {0, "libcudnn"},
           {91801, "cuDNN 9.18.1 is older than 9.19"},
           {100000, "cuDNN 10.0.0 is of another major version than 9"}}) {
    StartMachine({.gpus = 1, .cudnn_version = version});
    const auto device = TryDevice("", Precision::kBfloat16);
    ASSERT_OK(device);
    EXPECT_THAT((*device)->ops().Create(kShape),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("no CUDA kernel without cuDNN 9.19 or a later 9: "),
                               HasSubstr(version == 0 ? "cuDNN" : why), HasSubstr("install"),
                               Not(HasSubstr("\n")))));
    // 1 x 1 kernels are products.
    EXPECT_OK((*device)->ops().Create(ConvolutionShape{.inputs = 3, .outputs = 5}));
  }
}

TEST_F(CudnnConvolutionTest, WhatWasMeasuredIsOfItsVersion) {
  Choices(tuning_file());
  StartMachine({.gpus = 1, .cudnn_version = 92000});
  EXPECT_THAT(Choices(tuning_file()), Contains(HasSubstr("cudnn 92000, ")).Times(3));
  EXPECT_THAT(ReadTuning()["choices"], SizeIs(2 * 3));
}

TEST_F(CudnnConvolutionTest, AShapeIsPlannedOnceAndHasRun) {
  for (const std::string& file : {tuning_file(), std::string()}) {
    const auto device = TryDevice(file, Precision::kBfloat16);
    ASSERT_OK(device);
    const auto calls_of = [&](const char* name) {
      const int64_t before = cuda::CallsByName()[name];
      STAGECOACH_CHECK_OK((*device)->ops().Create(kShape));
      return cuda::CallsByName()[name] - before;
    };
    EXPECT_GE(calls_of("cudnnBackendExecute"), 3);
    EXPECT_EQ(calls_of("cudnnBackendExecute"), 0);
    EXPECT_EQ(calls_of("cudnnBackendFinalize"), 0);
  }
}

// Large shapes are planned at many micro-batch sizes.
TEST_F(CudnnConvolutionTest, NothingRunsOnADeviceForPlanning) {
  const auto calls = [](const char* name) { return cuda::CallsByName()[name]; };
  ASSERT_OK_AND_ASSIGN(const auto device, Backend().CreateDevice({.tuning_file = tuning_file(),
                                                                  .is_for_planning = true}));
  const int64_t runs = calls("cudnnBackendExecute"), compiled = calls("cudnnBackendFinalize");
  const int64_t products = calls("cublasLtMatmul");
  ASSERT_OK_AND_ASSIGN(const auto op, device->ops().Create(kShape));
  ASSERT_OK(device->ops().Create(ConvolutionShape{.inputs = 8, .outputs = 16}));
  EXPECT_EQ(calls("cudnnBackendExecute"), runs);
  EXPECT_EQ(calls("cudnnBackendFinalize"), compiled);
  EXPECT_EQ(calls("cublasLtMatmul"), products);
  ASSERT_OK_AND_ASSIGN(const auto other, TryDevice("", Precision::kFloat32));
  ASSERT_OK_AND_ASSIGN(const auto that_runs, other->ops().Create(kShape));
  EXPECT_EQ(op->workspace_bytes(), that_runs->workspace_bytes());
}

TEST_F(CudnnConvolutionTest, ScratchIsThatOfTheShape) {
  std::set<int64_t> bytes;
  for (const int64_t version : {91900, 92000}) {
    for (const std::string& file : {std::string(), tuning_file()}) {
      StartMachine({.gpus = 1, .cudnn_version = version});
      const auto device = TryDevice(file, Precision::kBfloat16);
      ASSERT_OK(device);
      ASSERT_OK_AND_ASSIGN(const auto op, (*device)->ops().Create(kShape));
      bytes.insert(op->workspace_bytes());
    }
  }
  EXPECT_THAT(bytes, SizeIs(1));
  EXPECT_LE(cudnn::ConvolutionScratchBytes({.samples = 1 << 10, .height = 1 << 20}), 32 << 20);
}

// An operation with its tensors, in the device's memory.
struct Bench {
  std::unique_ptr<Device> device;
  std::unique_ptr<ConvolutionOp> op;
  std::vector<Buffer> buffers;

  static absl::StatusOr<Bench> Create(std::unique_ptr<Device> device) {
    Bench bench;
    bench.device = std::move(device);
    ASSIGN_OR_RETURN(bench.op, bench.device->ops().Create(kShape));
    for (const int64_t bytes : {kBytes, kBytes, kBytes, kBytes, bench.op->workspace_bytes()}) {
      ASSIGN_OR_RETURN(Buffer buffer, bench.device->Allocate(bytes));
      bench.buffers.push_back(std::move(buffer));
    }
    return bench;
  }
  Tensor At(size_t buffer, DType type = DType::kBfloat16) {
    Tensor tensor;
    tensor.data = buffers[buffer].data();
    tensor.dtype = type;
    return tensor;
  }
  absl::Status Issue(Stream& stream) {
    const Tensor x = At(0), w = At(1), y = At(2), b = At(3);
    std::byte* const workspace = buffers[4].data();
    RETURN_IF_ERROR(op->Forward(stream, x, w, b, y, workspace));
    RETURN_IF_ERROR(op->BackwardInput(stream, y, w, {}, x, workspace));
    return op->BackwardWeight(stream, x, y, At(1, DType::kFloat32), At(3, DType::kFloat32), true,
                              workspace);
  }

  static constexpr int64_t kBytes = 1 << 14;
};

TEST_F(CudnnConvolutionTest, TensorsMustBeAligned) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> device, TryDevice("", Precision::kBfloat16));
  ASSERT_OK_AND_ASSIGN(Bench bench, Bench::Create(std::move(device)));
  Tensor x = bench.At(0);
  x.data = static_cast<std::byte*>(x.data) + 2;
  EXPECT_THAT(RunJob(*bench.device,
                     [&](Stream& stream) {
                       return bench.op->BackwardInput(stream, bench.At(2), bench.At(1), {}, x,
                                                      bench.buffers[4].data());
                     }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiples of 16")));
}

TEST_F(CudnnConvolutionTest, TheLibraryRefusesWhatDoesNotFit) {
  const GpuScope scope(0);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const cudnn::GpuHandle> handle,
                       cudnn::GpuHandle::Create(0));
  const cudnn::ConvolutionExtents fits = {.inputs = 8,
                                          .height = 5,
                                          .width = 5,
                                          .outputs = 8,
                                          .output_height = 3,
                                          .output_width = 3,
                                          .kernel = 3,
                                          .type = cudnn::DataType::kBfloat16};
  const auto with = [&](auto change) {
    cudnn::ConvolutionExtents changed = fits;
    change(changed);
    return changed;
  };
  for (const auto pass : {cudnn::ConvolutionPass::kForward, cudnn::ConvolutionPass::kBackwardInput,
                          cudnn::ConvolutionPass::kBackwardWeight}) {
    const auto refusal = [&](auto change) {
      return ConvolutionGraph(*handle, pass, with(change)).status();
    };
    EXPECT_OK(refusal([](auto&) {}));
    EXPECT_THAT(refusal([](auto& e) { e.output_width = 4; }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("images of a convolution")));
    EXPECT_THAT(refusal([](auto& e) { e.stride = 0; }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("stride or dilation")));
    EXPECT_THAT(refusal([](auto& e) { e.padding = -1; }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("padding")));
  }
  ASSERT_OK_AND_ASSIGN(const cudnn::Graph grouped,
                       ConvolutionGraph(*handle, cudnn::ConvolutionPass::kBackwardWeight,
                                        with([](auto& e) { e.groups = 2; })));
  ASSERT_OK_AND_ASSIGN(const std::vector<cudnn::Engine> engines,
                       ConvolutionEngines(*handle, grouped, Precision::kBfloat16));
  EXPECT_THAT(engines, IsEmpty());
}

TEST_F(CudnnConvolutionTest, IsCaptured) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> device, TryDevice("", Precision::kBfloat16));
  ASSERT_OK_AND_ASSIGN(Bench bench, Bench::Create(std::move(device)));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Recording> recording, bench.device->CreateRecording());
  for (int run = 0; run < 3; ++run) {
    ASSERT_OK(RunJob(*bench.device, [&](Stream& stream) {
      return stream.Replay(*recording, [&] { return bench.Issue(stream); });
    }));
  }
  EXPECT_EQ(recording->form(), Recording::Form::kGraph) << recording->why_plain();
  EXPECT_OK(FinishStream(*bench.device));
}

TEST_F(CudnnConvolutionTest, LeavesNothingWhicheverCallFails) {
  std::string failed;
  int failures = 0;
  for (int64_t call = 1; call == 1 || !failed.empty(); ++call) {
    StartMachine({.gpus = 1});
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> device, TryDevice("", Precision::kBfloat16));
    cuda::FailCall(call);
    {
      absl::StatusOr<Bench> bench = Bench::Create(std::move(device));
      absl::Status status = bench.status();
      if (bench.ok()) {
        status = RunJob(*bench->device, [&](Stream& stream) { return bench->Issue(stream); });
      }
      failed = cuda::failed_call();
      // A single failure may be skipped: of an engine, or of the memory to try it in.
      if (!status.ok()) {
        ++failures;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(failed == "cudaLaunchKernelEx" ? "Launch" : failed));
      }
    }
    ASSERT_TRUE(cuda::NothingIsLeft()) << "left by a failure of " << failed;
  }
  EXPECT_GT(failures, 50);
}

}  // namespace
}  // namespace stagecoach::kernels::convolution_cudnn_test
