#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/element_type.h"
#include "kernels/head_choice.h"

namespace stagecoach::kernels {

// Launches HeadOp::Choose (kernels/ops/head.h) for a row of logits, which begins at a multiple of
// 16 bytes and can be read up to one.
cudaError_t LaunchHeadChoice(cudaStream_t stream, ElementType type, const void* logits,
                             const HeadChoice& choice);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_
