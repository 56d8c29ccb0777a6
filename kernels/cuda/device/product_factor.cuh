#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_PRODUCT_FACTOR_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_PRODUCT_FACTOR_CUH_

#include <cuda_runtime.h>

#include <cstdint>

// How the factors of a warpgroup's product (warpgroup.cuh) lie in shared memory. A *panel* is a
// tile (tile.cuh) whose rows have 64 bfloat16, 128 bytes: its permutation of chunks is the
// hardware's swizzle of 128 bytes if it begins at a multiple of kPanelAlignment. A matrix with more
// columns is one panel for each 64 of them, one after the other. The hardware is told where a
// factor is by a descriptor of 64 bits (PTX ISA, "Matrix Descriptor Format"):
//   bits 0-13   the address
//   bits 16-29  from 64 columns of the panels to the next 64, in the next panel: used if these
//               columns are rows or columns of the product, but not if it sums over them
//   bits 32-45  from eight rows of the panel to the next eight
//   bits 62-63  1: the swizzle of 128 bytes
// The first three are in units of 16 bytes.
namespace stagecoach::kernels {

inline constexpr int kPanelColumns = 64;
inline constexpr unsigned kPanelRowBytes = 2 * kPanelColumns;
inline constexpr unsigned kPanelAlignment = 8 * kPanelRowBytes;

__device__ constexpr uint64_t FactorAt(uint32_t address, uint32_t to_next_panel) {
  return uint64_t{address >> 4 & 0x3FFFU} | uint64_t{to_next_panel >> 4} << 16 |
         uint64_t{kPanelAlignment >> 4} << 32 | uint64_t{1} << 62;
}

// Return what to add to the descriptor of a matrix, whose panels have kRows rows, for its step-th
// 16 columns (if the products sum over columns), or its step-th 16 rows (if over rows).
template <int kRows>
__device__ constexpr uint64_t ColumnsAt(int step) {
  constexpr int kSteps = kPanelColumns / 16;
  return (static_cast<unsigned>(step / kSteps) * kRows * kPanelRowBytes +
          static_cast<unsigned>(step % kSteps) * 32) >>
         4;
}
__device__ constexpr uint64_t RowsAt(int step) {
  return static_cast<unsigned>(step) * 16 * kPanelRowBytes >> 4;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_PRODUCT_FACTOR_CUH_
