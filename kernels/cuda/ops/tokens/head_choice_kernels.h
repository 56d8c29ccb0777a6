#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"
#include "kernels/head_choice.h"

namespace stagecoach::kernels {

// Launches HeadOp::Choose (kernels/ops/head.h) for a row of logits, which begins at a multiple of
// 16 bytes and can be read up to one.
cudaError_t LaunchHeadChoice(cudaStream_t stream, ElementType type, const void* logits,
                             const HeadChoice& choice);

// Does the same from x and w, without storing logits, which are rounded all the same. A part of w,
// and the norm's gamma and beta, are read before earlier work has ended: none of it may write them.
struct HeadRowArguments {
  int64_t features = 1;     // F
  const void* x = nullptr;  // (F), or the input of a norm
  const void* w = nullptr;  // (C, F)
  InputNormArguments norm;
  void* candidates = nullptr;  // scratch: a byte for each class and 8 more, at a multiple of 8
  bool starts_early = false;   // see LaunchEarly
};
inline bool FitsHeadRow(ElementType type, const HeadRowArguments& a) {
  uintptr_t addresses = 0;
  for (const void* const address : {a.x, a.w, a.norm.gamma, a.norm.beta}) {
    addresses |= reinterpret_cast<uintptr_t>(address);
  }
  return type == ElementType::kBfloat16 && a.features % 8 == 0 && addresses % 16 == 0;
}
// Returns the shared memory of a block: a GPU may have too little for long rows.
int64_t HeadRowSharedBytes(int64_t features, bool has_norm);
cudaError_t LaunchHeadRow(cudaStream_t stream, const HeadRowArguments& arguments,
                          const HeadChoice& choice);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_KERNELS_H_
