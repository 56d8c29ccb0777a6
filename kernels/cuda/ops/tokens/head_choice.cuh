#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_CUH_

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/head_choice.h"

// What the kernels share that find the largest logit of a row.
namespace stagecoach::kernels {

__device__ inline Located NoneFound() { return {-INFINITY, 0x7FFFFFFF}; }

// A thread considers classes in their order. A logit that is NaN or infinite counts as larger than
// all others.
__device__ inline void Consider(float logit, int index, Located& largest) {
  if (!(fabsf(logit) <= FLT_MAX)) {
    largest = {INFINITY, kNoClass};
  } else if (logit > largest.value) {  // strictly, so that the first of equals wins
    largest = {logit, index};
  }
}

// Called by one thread, once.
__device__ inline void StoreChoice(const Located& largest, const HeadChoice& choice) {
  const int64_t position = *choice.position;
  *choice.position = position + 1;
  if (choice.next != nullptr) *choice.next = largest.index == kNoClass ? 0 : largest.index;
  __stwt(choice.chosen + position, largest.index);  // written through, for the host
  __threadfence_system();
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_HEAD_CHOICE_CUH_
