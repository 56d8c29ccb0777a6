#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_WINDOWS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_WINDOWS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace stagecoach::kernels {

// Writes the matrix of the windows of images: (N P Q, columns), whose row (n, p, q) has
//   x[n, i, p stride + k - padding, q stride + l - padding]
// in the order of a weight, (i, k, l), and then zeros. The letters are those of
// kernels/ops/convolution.h; bfloat16.
struct WindowsArguments {
  int64_t samples = 1;         // N
  int inputs = 1;              // I
  int height = 1, width = 1;   // of an image, at most 2^29
  int kernel = 1, stride = 1;  // the product of both is below 2^29
  int padding = 0;
  int output_height = 1, output_width = 1;  // P, Q
  int columns = 8;                          // at least I K K; a multiple of 8, at most 8 * 256
  const void* images = nullptr;             // (N, height, width, I)
  void* windows = nullptr;                  // a multiple of 16
};
cudaError_t LaunchWindows(cudaStream_t stream, const WindowsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_WINDOWS_KERNELS_H_
