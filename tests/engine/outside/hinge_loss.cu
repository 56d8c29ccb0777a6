#include "tests/engine/outside/hinge_loss.h"

namespace outside {
namespace {

using stagecoach::kernels::LossTerms;

constexpr unsigned kThreads = 128;

__global__ void Rows(int64_t rows, int64_t classes, const LossTerms* terms, const float* y,
                     const int32_t* labels, float* dy, HingeOfRow* of_rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  y += row * classes;
  if (dy != nullptr) {
    dy += row * classes;
    for (int64_t c = 0; c < classes; ++c) dy[c] = 0.0F;
  }
  if (row >= terms->valid_samples) return;
  const int64_t label = labels[row];
  int64_t rival = label == 0 ? 1 : 0;
  for (int64_t c = 0; c < classes; ++c) {
    if (c != label && y[c] > y[rival]) rival = c;
  }
  const double loss = 1.0 + static_cast<double>(y[rival]) - static_cast<double>(y[label]);
  of_rows[row] = {loss > 0.0 ? loss : 0.0, y[label] > y[rival] ? 1.0 : 0.0};
  if (loss > 0.0 && dy != nullptr) {
    dy[rival] = terms->scale;
    dy[label] = -terms->scale;
  }
}

// One thread sums in the order of the rows, so every run has the same bits.
__global__ void Sum(const LossTerms* terms, const HingeOfRow* of_rows, double* result) {
  double loss = 0.0, right = 0.0;
  for (int64_t row = 0; row < terms->valid_samples; ++row) {
    loss += of_rows[row].loss;
    right += of_rows[row].right;
  }
  result[0] = loss;
  result[1] = right;
}

}  // namespace

cudaError_t LaunchHinge(void* stream, int64_t rows, int64_t classes, const LossTerms* terms,
                        const float* y, const int32_t* labels, float* dy, HingeOfRow* of_rows,
                        double* result) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((rows + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      cudaLaunchKernelEx(&config, Rows, rows, classes, terms, y, labels, dy, of_rows);
  if (error != cudaSuccess) return error;
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  return cudaLaunchKernelEx(&config, Sum, terms, static_cast<const HingeOfRow*>(of_rows), result);
}

}  // namespace outside
