// cuDNN's own proposals, where it is installed: it answers without a GPU, for a GPU that is
// described.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/convolution_graph.h"
#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/device.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::cudnn_heuristics_test {
namespace {

using cudnn::ConvolutionExtents;
using cudnn::ConvolutionPass;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kH100[] =
    R"({"cudaDeviceId":0,"deviceName":"NVIDIA H100 80GB HBM3","deviceVer":900,"driverVer":13000,
"isTccDriver":0,"l2CacheSize":52428800,"maxCtasPerSM":32,"maxRegistersPerSM":65536,
"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"maxThreadsPerBlock":1024,
"maxThreadsPerSM":2048,"memClockRateKHz":2619000,"multiProcessorCount":132,"pciDeviceId":0,
"regsPerBlock":65536,"reservedSharedMemoryPerBlock":1024,"smClockRateKHz":1980000,
"supportCoopLaunch":1,"totalGlobalMem":85017493504,"warpSize":32,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],
"maxSharedMemoryPerSM":233472})";

ConvolutionExtents Square(int64_t inputs, int64_t height, int64_t outputs, int64_t kernel,
                          int64_t stride) {
  const int64_t padding = kernel / 2, places = (height + 2 * padding - kernel) / stride + 1;
  return {.samples = 64,
          .inputs = inputs,
          .height = height,
          .width = height,
          .outputs = outputs,
          .output_height = places,
          .output_width = places,
          .kernel = kernel,
          .stride = stride,
          .padding = padding,
          .type = cudnn::DataType::kBfloat16};
}

class CudnnHeuristics : public ::testing::Test {
 protected:
  void SetUp() override {
    // Without a driver the library finds no engine for any GPU, but a driver that does nothing is
    // enough.
    dlopen(STAGECOACH_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL);
    dlopen(STAGECOACH_CUDNN, RTLD_NOW | RTLD_GLOBAL);
    if (const auto api = cudnn::Open(); !api.ok()) GTEST_SKIP() << api.status().message();
    ASSERT_OK_AND_ASSIGN(handle_, cudnn::GpuHandle::Describe(kH100));
  }

  // Expects an engine that may be used; if its kernels need no compilation, which takes a driver,
  // also checks that its scratch suffices.
  void ExpectAnEngine(ConvolutionPass pass, const ConvolutionExtents& extents,
                      Precision precision) const {
    ASSERT_OK_AND_ASSIGN(const cudnn::Graph graph,
                         cudnn::ConvolutionGraph(*handle_, pass, extents));
    ASSERT_OK_AND_ASSIGN(const std::vector<cudnn::Engine> engines,
                         cudnn::ConvolutionEngines(*handle_, graph, precision));
    ASSERT_THAT(engines, Not(IsEmpty()));
    if (cudnn::TakesUnit(pass, extents)) return;
    std::string needed;
    for (const cudnn::Engine& engine : engines) {
      const auto plan = cudnn::ExecutionPlan::Create(handle_, engine);
      if (!plan.ok()) continue;
      if (plan->workspace_bytes() <= cudnn::ConvolutionScratchBytes(extents)) return;
      absl::StrAppend(&needed, plan->workspace_bytes(), " ");
    }
    ADD_FAILURE() << "no engine within " << cudnn::ConvolutionScratchBytes(extents)
                  << " bytes of scratch: " << needed;
  }
  void ExpectAllPasses(ConvolutionExtents extents, Precision precision) const {
    SCOPED_TRACE(absl::StrCat(extents.inputs, " x ", extents.height, " to ", extents.outputs,
                              ", kernel ", extents.kernel, ", ", PrecisionName(precision)));
    ExpectAnEngine(ConvolutionPass::kBackwardInput, extents, precision);
    ExpectAnEngine(ConvolutionPass::kBackwardWeight, extents, precision);
    for (const bool has_bias : {false, true}) {
      extents.has_bias = has_bias;
      ExpectAnEngine(ConvolutionPass::kForward, extents, precision);
    }
  }

  std::shared_ptr<const cudnn::GpuHandle> handle_;
};

// Excludes 1 x 1 convolutions, which are products.
TEST_F(CudnnHeuristics, HaveAnEngineForEveryConvolutionOfResNet50) {
  for (const ConvolutionExtents& extents :
       {Square(8, 224, 64, 7, 2), Square(64, 56, 64, 3, 1), Square(128, 56, 128, 3, 2),
        Square(128, 28, 128, 3, 1), Square(256, 28, 256, 3, 2), Square(256, 14, 256, 3, 1),
        Square(512, 14, 512, 3, 2), Square(512, 7, 512, 3, 1), Square(256, 56, 512, 1, 2),
        Square(512, 28, 1024, 1, 2), Square(1024, 14, 2048, 1, 2)}) {
    ExpectAllPasses(extents, Precision::kBfloat16);
  }
}

TEST_F(CudnnHeuristics, HaveAnEngineForOtherTypesAndGroups) {
  ConvolutionExtents floats = Square(3, 32, 5, 3, 1);
  floats.type = cudnn::DataType::kFloat;
  ExpectAllPasses(floats, Precision::kFloat32);
  ExpectAllPasses(floats, Precision::kTf32);
  for (const int64_t groups : {2, 32}) {
    ConvolutionExtents grouped = Square(32, 28, 32, 3, 1);
    grouped.groups = groups;
    ExpectAnEngine(ConvolutionPass::kForward, grouped, Precision::kBfloat16);
    ExpectAnEngine(ConvolutionPass::kBackwardInput, grouped, Precision::kBfloat16);
    // TF32 products use copies in float32.
    grouped.type = cudnn::DataType::kFloat;
    ExpectAnEngine(ConvolutionPass::kBackwardWeight, grouped, Precision::kTf32);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::cudnn_heuristics_test
