#include "tests/engine/outside/prelu.h"

namespace outside {
namespace {

constexpr unsigned kThreads = 128;

__device__ int64_t ThreadOfGrid() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__global__ void Forward(int64_t elements, int64_t features, const float* x, const float* slope,
                        float* y) {
  const int64_t i = ThreadOfGrid();
  if (i < elements) y[i] = x[i] > 0.0F ? x[i] : slope[i % features] * x[i];
}

__global__ void BackwardInput(int64_t elements, int64_t features, const float* x,
                              const float* slope, const float* dy, float* dx) {
  const int64_t i = ThreadOfGrid();
  if (i < elements) dx[i] = x[i] > 0.0F ? dy[i] : slope[i % features] * dy[i];
}

// Each thread sums one feature in the order of the rows, so every run has the same bits.
__global__ void BackwardWeight(int64_t elements, int64_t features, const float* x, const float* dy,
                               bool accumulate, float* dslope) {
  const int64_t f = ThreadOfGrid();
  if (f >= features) return;
  float sum = accumulate ? dslope[f] : 0.0F;
  for (int64_t i = f; i < elements; i += features) {
    if (x[i] <= 0.0F) sum += dy[i] * x[i];
  }
  dslope[f] = sum;
}

cudaLaunchConfig_t ConfigFor(void* stream, int64_t threads) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return config;
}

}  // namespace

cudaError_t LaunchPreluForward(void* stream, int64_t rows, int64_t features, const float* x,
                               const float* slope, float* y) {
  const cudaLaunchConfig_t config = ConfigFor(stream, rows * features);
  return cudaLaunchKernelEx(&config, Forward, rows * features, features, x, slope, y);
}

cudaError_t LaunchPreluBackwardInput(void* stream, int64_t rows, int64_t features, const float* x,
                                     const float* slope, const float* dy, float* dx) {
  const cudaLaunchConfig_t config = ConfigFor(stream, rows * features);
  return cudaLaunchKernelEx(&config, BackwardInput, rows * features, features, x, slope, dy, dx);
}

cudaError_t LaunchPreluBackwardWeight(void* stream, int64_t rows, int64_t features, const float* x,
                                      const float* dy, bool accumulate, float* dslope) {
  const cudaLaunchConfig_t config = ConfigFor(stream, features);
  return cudaLaunchKernelEx(&config, BackwardWeight, rows * features, features, x, dy, accumulate,
                            dslope);
}

}  // namespace outside
