#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_WARPGROUP_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_WARPGROUP_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

// What the gradients' kernels by warpgroups share. A warpgroup has 64 rows; matrices in shared
// memory are panels (product_factor.cuh).
namespace stagecoach::kernels {

inline constexpr int kWarpgroupRows = 64;

template <int D>
__host__ __device__ constexpr unsigned PanelBytes(int rows) {
  static_assert(D % kPanelColumns == 0);
  return static_cast<unsigned>(rows) * D * sizeof(__nv_bfloat16);
}

// Returns the block's shared memory from the first place on where a panel may begin. A launch asks
// for kPanelAlignment bytes more.
__device__ __forceinline__ unsigned char* SharedPanels() {
  unsigned char* const shared = SharedMemory<unsigned char>();
  return shared + (0U - SharedAddress(shared)) % kPanelAlignment;
}

// The threads of a block start to copy the first `rows` rows of a matrix of kRows; the others
// become 0.
template <int D, int kRows, int kThreads>
__device__ __forceinline__ void CopyPanels(unsigned char* panels, const __nv_bfloat16* from,
                                           int64_t stride, int rows) {
#pragma unroll
  for (int panel = 0; panel < D / kPanelColumns; ++panel) {
    CopyTile<kPanelColumns, kRows, kThreads>(panels + panel * kRows * kPanelRowBytes,
                                             from + panel * kPanelColumns, stride, rows);
  }
}

// Returns the descriptor of a matrix whose panels have kRows rows.
template <int kRows>
__device__ __forceinline__ uint64_t FactorIn(const unsigned char* panels) {
  return FactorAt(SharedAddress(panels), kRows * kPanelRowBytes);
}

// Starts c = a b^T, where a is 64 rows of a matrix of kRowsOfA, and b one of kN rows, both with D
// columns.
template <int D, int kRowsOfA, int kN>
__device__ __forceinline__ void StartTransposedProduct(uint64_t a, uint64_t b,
                                                       float (&c)[kN / 8][4]) {
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    StartProduct</*kSumsOverRows=*/false>(c, a + ColumnsAt<kRowsOfA>(step), b + ColumnsAt<kN>(step),
                                          step > 0);
  }
}
// Starts c += a b, where b is a matrix of kK rows and D columns.
template <int D, int kK>
__device__ __forceinline__ void StartSum(const uint32_t (&a)[kK / 16][4], uint64_t b,
                                         float (&c)[D / 8][4]) {
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    StartProduct</*kSumsOverRows=*/true>(c, a[step], b + RowsAt(step), true);
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_WARPGROUP_CUH_
