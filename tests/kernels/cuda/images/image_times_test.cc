// Times of norms, pooling and copies of images on a GPU, next to a copy of the same number of
// bytes: run with --gtest_also_run_disabled_tests --gtest_filter=*Times*.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/ops/images/image_norm_kernels.h"
#include "kernels/cuda/ops/images/pooling_kernels.h"
#include "kernels/cuda/ops/images/transpose_kernels.h"
#include "kernels/cuda/ops/images/windows_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"

namespace stagecoach::kernels::image_times_test {
namespace {

using ::stagecoach::testing::EmulatedGpu;
using ::stagecoach::testing::RandomNormal;

constexpr DType kType = DType::kBfloat16;
constexpr ElementType kElement = ElementType::kBfloat16;
using Work = std::function<cudaError_t(cudaStream_t)>;

float MillisecondsOf(cudaStream_t stream, const Work& work) {
  const int times = testing::cuda::IsSimulated() ? 1 : 20;
  cudaEvent_t begin = nullptr, end = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&begin, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(work(stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  for (int i = 0; i < times; ++i) EXPECT_EQ(work(stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  return milliseconds / static_cast<float>(times);
}

// Fills a tensor by repeating a few numbers.
Tensor Filled(EmulatedGpu& gpu, int64_t elements) {
  const Tensor some = gpu.Operand(kType, RandomNormal(std::min<int64_t>(elements, 1 << 20), 1));
  const Tensor tensor = gpu.Result(kType, elements);
  for (int64_t at = 0; at < elements; at += some.elements()) {
    const int64_t count = std::min(some.elements(), elements - at);
    EXPECT_EQ(cudaMemcpyAsync(tensor.bf16() + at, some.data, static_cast<size_t>(2 * count),
                              cudaMemcpyDeviceToDevice, gpu.stream()),
              cudaSuccess);
  }
  return tensor;
}

// `bytes`: the least that `work` reads and writes.
struct Timed {
  const char* name;
  double bytes;
  Work work;
};
void Print(EmulatedGpu& gpu, const char* what, const Tensor& from, const Tensor& to,
           const std::vector<Timed>& all) {
  const double copy = MillisecondsOf(gpu.stream(), [&](cudaStream_t stream) {
    return cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()),
                           cudaMemcpyDeviceToDevice, stream);
  });
  const double rate = 2.0 * static_cast<double>(from.bytes()) / copy;
  std::printf("%s: copy %.4f ms, %.2f TB/s\n", what, copy, rate * 1e-9);
  for (const Timed& timed : all) {
    const double milliseconds = MillisecondsOf(gpu.stream(), timed.work);
    std::printf("  %-24s %.4f ms, %3.0f %% of the copy's rate\n", timed.name, milliseconds,
                100.0 * timed.bytes / milliseconds / rate);
  }
}

void PrintNorm(const ImageNormExtents& extents) {
  EmulatedGpu gpu;
  const int64_t elements = extents.samples * extents.channels * extents.area;
  const int64_t sets = extents.groups == 0 ? extents.channels : extents.samples * extents.groups;
  const Tensor x = Filled(gpu, elements), dy = Filled(gpu, elements), y = Filled(gpu, elements);
  const Tensor dx = gpu.Result(kType, elements), dz = gpu.Result(kType, elements);
  const Tensor gamma = Filled(gpu, extents.channels), beta = Filled(gpu, extents.channels);
  const auto floats = [&](int64_t count) { return gpu.Result(DType::kFloat32, count).f32(); };
  float* const workspace = floats(ImageNormWorkspaceBytes(kElement, extents) / 4);
  const ImageNormArguments forward = {.extents = extents,
                                      .epsilon = 1e-5F,
                                      .x = x.data,
                                      .gamma = gamma.data,
                                      .beta = beta.data,
                                      .mean = floats(sets),
                                      .variance = floats(sets),
                                      .y = y.data,
                                      .workspace = workspace,
                                      .starts_early = true};
  const ImageNormBackwardArguments backward = {.extents = extents,
                                               .epsilon = 1e-5F,
                                               .dy = dy.data,
                                               .x = x.data,
                                               .gamma = gamma.data,
                                               .beta = beta.data,
                                               .mean = forward.mean,
                                               .variance = forward.variance,
                                               .dx = dx.data,
                                               .dgamma = floats(extents.channels),
                                               .dbeta = floats(extents.channels),
                                               .workspace = workspace,
                                               .starts_early = true};
  const auto apply = [&](const void* addend, bool has_relu) -> Work {
    ImageNormArguments arguments = forward;
    arguments.addend = addend;
    arguments.has_relu = has_relu;
    arguments.starts_early = false;
    return [=](cudaStream_t stream) { return LaunchImageNormApply(stream, kElement, arguments); };
  };
  const auto back = [&](bool has_relu, const void* of, void* to) -> Work {
    ImageNormBackwardArguments arguments = backward;
    arguments.has_relu = has_relu;
    arguments.y = of;
    arguments.dz = to;
    return
        [=](cudaStream_t stream) { return LaunchImageNormBackward(stream, kElement, arguments); };
  };
  const auto image = static_cast<double>(x.bytes());
  char name[100];
  std::snprintf(name, sizeof name, "norm %ld x %ld x %ld, groups %ld", extents.samples,
                extents.channels, extents.area, extents.groups);
  Print(
      gpu, name, x, dx,
      {{"statistics", image,
        [=](cudaStream_t stream) { return LaunchImageNormStatistics(stream, kElement, forward); }},
       {"apply", 2 * image, apply(nullptr, false)},
       {"apply, ReLU", 2 * image, apply(nullptr, true)},
       {"apply, sum, ReLU", 3 * image, apply(dy.data, true)},
       {"backward", 5 * image, back(false, nullptr, nullptr)},
       {"backward, ReLU", 5 * image, back(true, nullptr, nullptr)},
       {"backward, ReLU by y, dz", 7 * image, back(true, y.data, dz.data)}});
}

void PrintPooling(const PoolingExtents& extents) {
  EmulatedGpu gpu;
  const int64_t images = int64_t{extents.samples} * extents.channels;
  const int64_t inputs = images * extents.height * extents.width;
  const int64_t outputs = images * extents.output_height * extents.output_width;
  const Tensor x = Filled(gpu, inputs), dy = Filled(gpu, outputs);
  const Tensor y = gpu.Result(kType, outputs), dx = gpu.Result(kType, inputs);
  const auto both = static_cast<double>(x.bytes() + y.bytes());
  char name[100];
  std::snprintf(name, sizeof name, "%s pooling %d x %d x %d x %d",
                extents.is_max ? "max" : "average", extents.samples, extents.channels,
                extents.height, extents.width);
  Print(gpu, name, x, dx,
        {{"forward", both,
          [&](cudaStream_t stream) {
            return LaunchPoolingForward(stream, kElement, extents, x.data, y.data);
          }},
         {"backward", both + (extents.is_max ? static_cast<double>(x.bytes()) : 0.0),
          [&](cudaStream_t stream) {
            return LaunchPoolingBackward(stream, kElement, extents, dy.data, x.data, dx.data);
          }}});
}

// The windows of a first convolution, and its images with their channels last, `samples` at a time.
void PrintWindows(int64_t samples, int side) {
  EmulatedGpu gpu;
  const WindowsArguments arguments = {.samples = samples,
                                      .inputs = 3,
                                      .height = side,
                                      .width = side,
                                      .kernel = 7,
                                      .stride = 2,
                                      .padding = 3,
                                      .output_height = side / 2,
                                      .output_width = side / 2,
                                      .columns = 152};
  const Tensor x = Filled(gpu, samples * 3 * side * side);
  const Tensor last = gpu.Result(kType, x.elements());
  const Tensor windows = gpu.Result(kType, samples * side * side / 4 * arguments.columns);
  Print(gpu, "images of three channels", windows, gpu.Result(kType, windows.elements()),
        {{"windows", static_cast<double>(windows.bytes() + x.bytes()),
          [&](cudaStream_t stream) {
            WindowsArguments own = arguments;
            own.images = last.data;
            own.windows = windows.data;
            return LaunchWindows(stream, own);
          }},
         {"channels last", static_cast<double>(2 * x.bytes()), [&](cudaStream_t stream) {
            return LaunchTranspose(stream, kElement, samples, 3, int64_t{side} * side, x.data,
                                   last.data);
          }}});
}

// The shapes of ResNet-50, and one of a group norm.
TEST(ImageTimes, DISABLED_OfNormsAndPooling) {
  const bool is_simulated = testing::cuda::IsSimulated();
  const int64_t samples = is_simulated ? 1 : 256;
  const std::vector<ImageNormExtents> norms =
      is_simulated
          ? std::vector<ImageNormExtents>{{1, 64, 30, 0}, {1, 64, 30, 32}}
          : std::vector<ImageNormExtents>{{samples, 64, 112 * 112, 0}, {samples, 64, 56 * 56, 0},
                                          {samples, 256, 56 * 56, 0},  {samples, 512, 28 * 28, 0},
                                          {samples, 256, 14 * 14, 0},  {samples, 2048, 7 * 7, 0},
                                          {samples, 256, 56 * 56, 32}};
  for (const ImageNormExtents& extents : norms) PrintNorm(extents);
  PrintWindows(is_simulated ? 1 : 16, is_simulated ? 16 : 224);
  const int32_t side = is_simulated ? 12 : 112;
  PrintPooling({.is_max = true,
                .samples = static_cast<int32_t>(samples),
                .channels = 64,
                .height = side,
                .width = side,
                .output_height = side / 2,
                .output_width = side / 2,
                .kernel_height = 3,
                .kernel_width = 3,
                .stride = 2,
                .padding = 1});
  PrintPooling({.samples = static_cast<int32_t>(samples),
                .channels = 2048,
                .height = 7,
                .width = 7,
                .kernel_height = 7,
                .kernel_width = 7});
}

}  // namespace
}  // namespace stagecoach::kernels::image_times_test
