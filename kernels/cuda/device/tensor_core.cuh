#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

// Products of small tiles that the 32 lanes of a warp hold together. All lanes call these functions
// at the same time. A word has two bfloat16 that are neighbors in a row (in b, in a column), the
// first in its lower half. With g = lane / 4 and m = lane % 4, a lane has
//   a, 16 x 16: words (g, 2m), (g + 8, 2m), (g, 2m + 8), (g + 8, 2m + 8), by row and first column
//   b, 16 x 8:  words (2m, g), (2m + 8, g), by first row and column
//   c, 16 x 8:  float32 (g, 2m), (g, 2m + 1), (g + 8, 2m), (g + 8, 2m + 1)
// so that two adjacent tiles c become, rounded in pairs, a tile a.
namespace stagecoach::kernels {

// Computes c += a b. Products are exact; the order in which tensor cores sum them, and how they
// round, is up to the hardware, and always the same.
__device__ __forceinline__ void MultiplyTiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  // Volatile, because otherwise it might be moved to where only some lanes need the result.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four matrices of 8 x 8 bfloat16 from shared memory. Lane i has the address, a multiple of
// 16, of row i % 8 of matrix i / 8. A lane gets the word (g, 2m), by row and first column, of each
// matrix.
__device__ __forceinline__ void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}
// Loads the transpose of each matrix.
__device__ __forceinline__ void LoadMatricesTransposed(const void* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_TENSOR_CORE_CUH_
