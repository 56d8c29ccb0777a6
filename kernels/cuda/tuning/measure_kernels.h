#ifndef STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// What ways to compute are tried on, and how their results are compared.
namespace stagecoach::kernels {

// to[i] = a number of [-1, 1) that depends on i and `seed` alone, equally likely everywhere but for
// the rounding to `type`.
cudaError_t LaunchFillUniform(cudaStream_t stream, ElementType type, int64_t elements,
                              uint32_t seed, void* to);

// Adds a number to *sum that depends on all bits of `words` and on their places: results that
// differ have different sums, but for one in 2^64. `sum` is 64 bits of the GPU's memory.
cudaError_t LaunchFingerprint(cudaStream_t stream, int64_t count, const uint32_t* words,
                              unsigned long long* sum);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_
