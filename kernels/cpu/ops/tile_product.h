#ifndef STAGECOACH_KERNELS_CPU_OPS_TILE_PRODUCT_H_
#define STAGECOACH_KERNELS_CPU_OPS_TILE_PRODUCT_H_

#include <cstdint>

namespace stagecoach::kernels {

// The matrix that a product reads element by element: (i, k) is at data[i * row + k * column], so
// that transposition costs no copy. With from_memory (and column 1), no cache holds it, and the
// rows that follow in memory are read next, so they are prefetched.
struct TileOperand {
  const float* data;
  int64_t row;
  int64_t column;
  bool from_memory = false;
};

// The matrix whose rows a product reads as vectors, `row` apart. A packed one is divided into
// panels of kTileColumns columns (tile_shape.h), `panel` apart; 0: it is not packed.
struct TilePanels {
  const float* data;
  int64_t row;
  int64_t panel = 0;
};

// Computes c = a b (+ c if accumulate) with a (m, k), b (k, n), c (m, n), whose rows are ldc apart.
// c may not overlap the others. Uses one thread and no scratch. Each element is summed in the order
// of k.
//
// Made for tiles that are in a cache: oneDNN's stateless product copies its operands first, and
// allocates memory from the system if they exceed 128 KiB. Measured on one core of 116 GFLOP/s
// (AVX-512, and AVX2 on the same): (64, 64) x (64, 64) runs at 110, oneDNN's at 95 to 103; (64,
// 256) x (256, 64), where oneDNN's touches fresh memory in each call, at 110 and 20.
void TileProduct(int64_t m, int64_t n, int64_t k, const TileOperand& a, const TilePanels& b,
                 bool accumulate, float* c, int64_t ldc);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TILE_PRODUCT_H_
