#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_TRANSPOSE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_TRANSPOSE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

namespace stagecoach::kernels {

// Computes y (matrices, columns, rows) from x (matrices, rows, columns).
cudaError_t LaunchTranspose(cudaStream_t stream, ElementType type, int64_t matrices, int64_t rows,
                            int64_t columns, const void* x, void* y);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_TRANSPOSE_KERNELS_H_
