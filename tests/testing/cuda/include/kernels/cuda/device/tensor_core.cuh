#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_

#include <cstdint>

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::kernels {

inline void MultiplyTiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                          testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::MultiplyTiles(c, a, b0, b1, location);
}

inline void LoadMatrices(const void* row, uint32_t (&matrices)[4],
                         testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::LoadMatrices(row, /*transposed=*/false, matrices, location);
}
inline void LoadMatricesTransposed(
    const void* row, uint32_t (&matrices)[4],
    testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::LoadMatrices(row, /*transposed=*/true, matrices, location);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_
