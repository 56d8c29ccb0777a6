#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SEEN_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SEEN_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/math.h"

// Which positions see which, with windows and documents, and the tanh of capped scores. Kernels
// that know them are instantiated separately, so that the others cost nothing more.
namespace stagecoach::kernels {

// Returns the first position that position t of a sample sees. It never decreases with t.
__device__ inline int FirstSeenBy(const AttentionArguments& a, int64_t sample, int t) {
  int first = a.window > 0 ? max(t - a.window + 1, 0) : 0;
  if (a.documents != nullptr) first = max(first, a.documents[sample * a.positions + t]);
  return first;
}

// Returns the end of the positions that see position u of a sample. It never decreases with u.
__device__ inline int EndOfViewers(const AttentionArguments& a, int64_t sample, int u) {
  const int positions = static_cast<int>(a.positions);
  int end = a.window > 0 && a.window < positions - u ? u + a.window : positions;
  if (a.documents == nullptr) return end;
  const int32_t* const documents = a.documents + sample * a.positions;
  // The first position whose document begins behind u.
  for (int begin = u + 1; begin < end;) {
    const int middle = begin + (end - begin) / 2;
    if (documents[middle] > u) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return end;
}

// Returns tanh(z), the share of its cap that a score reaches.
__device__ inline float CapShare(float z) {
  const float exponential = __expf(TanhExponent(z));
  return TanhFrom(z, __fdividef(1.0F - exponential, 1.0F + exponential));
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SEEN_CUH_
