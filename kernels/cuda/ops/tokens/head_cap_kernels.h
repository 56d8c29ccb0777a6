#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CAP_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CAP_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

namespace stagecoach::kernels {

// Replaces z by cap tanh(z / cap), or by NaN if it is NaN or infinite (kernels/ops/head.h).
cudaError_t LaunchHeadCap(cudaStream_t stream, ElementType type, float cap, int64_t elements,
                          void* z);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CAP_KERNELS_H_
