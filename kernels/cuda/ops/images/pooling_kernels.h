#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of PoolingOp (kernels/ops/pooling.h has the formulas and shapes). Channels are last
// in memory. `void` pointers are to elements of the type passed with them.
namespace stagecoach::kernels {

struct PoolingExtents {
  bool is_max = false;
  int32_t samples = 1, channels = 1;
  int32_t height = 1, width = 1;
  int32_t output_height = 1, output_width = 1;
  int32_t kernel_height = 1, kernel_width = 1;
  int32_t stride = 1, padding = 0;
};

cudaError_t LaunchPoolingForward(cudaStream_t stream, ElementType type,
                                 const PoolingExtents& extents, const void* x, void* y);

// `x` is read for maxima only.
cudaError_t LaunchPoolingBackward(cudaStream_t stream, ElementType type,
                                  const PoolingExtents& extents, const void* dy, const void* x,
                                  void* dx);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_KERNELS_H_
