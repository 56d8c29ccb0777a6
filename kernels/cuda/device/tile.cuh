#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_TILE_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_TILE_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

// Matrices of bfloat16 in shared memory, and their products on tensor cores. A *tile* has rows of
// kColumns elements, a multiple of 16, and begins at a multiple of 16 bytes. A row's chunks of 16
// bytes are permuted (swizzled) so that the same chunk of eight consecutive rows, which forms a
// matrix of ldmatrix, touches every bank once.
//
// Products are computed by a warp: kM times 16 rows, which the warp's lanes hold as described in
// tensor_core.cuh.
namespace stagecoach::kernels {

template <int kColumns>
struct TileRows {
  static_assert(kColumns % 16 == 0);
  static constexpr unsigned kChunks = kColumns / 8;
  static constexpr unsigned kBytes = kColumns * 2;
  // The number of eight rows that begin at the same bank, and differ in their permutation of
  // chunks.
  static constexpr unsigned kAlike = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;

  static __device__ unsigned Exchange(unsigned row) { return row / (8 / kAlike) % kAlike; }
  static __device__ unsigned Offset(unsigned row, unsigned chunk) {
    return row * kBytes + (chunk ^ Exchange(row)) * 16;
  }
};

// The threads of a block start to copy the first `rows` rows of a tile of kRows; the others become
// 0. Rows of `from` are `stride` elements apart.
template <int kColumns, int kRows, int kThreads>
__device__ __forceinline__ void CopyTile(unsigned char* tile, const __nv_bfloat16* from,
                                         int64_t stride, int rows) {
  using Rows = TileRows<kColumns>;
  // A thread has the same chunk of several rows, which are permuted alike.
  constexpr int kLanes = Rows::kChunks <= 8 ? 8 : 16, kStep = kThreads / kLanes;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0 && Rows::kChunks <= kLanes);
  const unsigned row = threadIdx.x / kLanes, chunk = threadIdx.x % kLanes;
  tile += Rows::Offset(row, chunk);
  from += row * stride + chunk * 8;
  rows -= static_cast<int>(row);
  if (chunk < Rows::kChunks) {
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      CopyAsync(tile + i * Rows::kBytes, from, i < rows);
      from += kStep * stride;
    }
  }
  // The code below takes whole warps.
  if (Rows::kChunks < kLanes) __syncwarp();
}

// The place of the calling lane's row in a load of 16 x 16 elements. Of the four matrices the
// second is below the first or, with `kAside`, right of it: that transposes a factor that is loaded
// as it stands, and puts its two words into neighboring registers, as the hardware wants them.
template <int kColumns, bool kAside = false>
class LaneOfTile {
 public:
  __device__ LaneOfTile() {
    const unsigned lane = threadIdx.x % 32, second = lane / 8 % 2, third = lane / 16;
    const unsigned row = lane % 8 + 8 * (kAside ? third : second);
    row_ = row * TileRows<kColumns>::kBytes;
    chunk_ = (kAside ? second : third) ^ TileRows<kColumns>::Exchange(row);
  }
  // Returns the address for the 16 rows and columns that begin at 16 `row` and 16 `column`.
  __device__ const unsigned char* At(const unsigned char* tile, unsigned row,
                                     unsigned column) const {
    return tile + row * 16 * TileRows<kColumns>::kBytes + row_ + (chunk_ ^ 2 * column) * 16;
  }

 private:
  unsigned row_, chunk_;
};

// Computes c += a b^T, where b is a tile of kN rows. load_a(column, m, words) loads a's 16 x 16
// elements that begin at row 16 m and at 16 `column`.
template <int kColumns, int kM, int kN, typename LoadA>
__device__ __forceinline__ void MultiplyByTransposed(LoadA load_a, const unsigned char* b,
                                                     float (&c)[kM][kN / 8][4]) {
  const LaneOfTile<kColumns, /*kAside=*/true> lane;
#pragma unroll
  for (int column = 0; column < kColumns / 16; ++column) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a(column, m, a[m]);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t words[4];
      LoadMatrices(lane.At(b, n, column), words);
#pragma unroll
      for (int m = 0; m < kM; ++m) MultiplyTiles(c[m][2 * n], a[m], words[0], words[1]);
#pragma unroll
      for (int m = 0; m < kM; ++m) MultiplyTiles(c[m][2 * n + 1], a[m], words[2], words[3]);
    }
  }
}

// Rounds and packs two neighbors.
__device__ __forceinline__ uint32_t PackPair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}

// Return the first elements of two words, and their second ones: pairs of neighbors in two rows
// become the pairs of neighbors in the two columns.
__device__ __forceinline__ uint32_t LowerHalves(uint32_t first, uint32_t second) {
  return (first & 0xFFFFU) | second << 16;
}
__device__ __forceinline__ uint32_t UpperHalves(uint32_t first, uint32_t second) {
  return first >> 16 | (second & 0xFFFF0000U);
}

// A first factor of kM times 16 rows and kK columns.
template <int kM, int kK>
using Words = uint32_t[kM][kK / 16][4];

// Rounds row `half` (lane / 4, or 8 more) of each 16: sums become a first factor.
template <int kK>
__device__ __forceinline__ void RoundRow(const float (&row)[kK / 8][4], int half,
                                         uint32_t (&words)[kK / 16][4]) {
#pragma unroll
  for (int n = 0; n < kK / 8; ++n) {
    words[n / 2][n % 2 * 2 + half] = PackPair(row[n][2 * half], row[n][2 * half + 1]);
  }
}
template <int kM, int kK>
__device__ __forceinline__ void Round(const float (&rows)[kM][kK / 8][4], Words<kM, kK>& words) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    RoundRow<kK>(rows[m], 0, words[m]);
    RoundRow<kK>(rows[m], 1, words[m]);
  }
}

// Computes c += a b, where b is a tile of kK rows.
template <int kColumns, int kM, int kK>
__device__ __forceinline__ void Multiply(const Words<kM, kK>& a, const unsigned char* b,
                                         float (&c)[kM][kColumns / 8][4]) {
  const LaneOfTile<kColumns> lane;
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t words[4];
      LoadMatricesTransposed(lane.At(b, k, n), words);
#pragma unroll
      for (int m = 0; m < kM; ++m) MultiplyTiles(c[m][2 * n], a[m][k], words[0], words[1]);
#pragma unroll
      for (int m = 0; m < kM; ++m) MultiplyTiles(c[m][2 * n + 1], a[m][k], words[2], words[3]);
    }
  }
}

// Stores the first `rows` of a warp's rows, rounded, 16 bytes at a time. They pass through the same
// rows of `tile`, which nobody else uses.
template <int kColumns, int kM>
__device__ __forceinline__ void StoreRows(const float (&c)[kM][kColumns / 8][4],
                                          unsigned char* tile, __nv_bfloat16* to, int64_t stride,
                                          int rows) {
  using Rows = TileRows<kColumns>;
  const unsigned lane = threadIdx.x % 32;
  __syncwarp();  // the lanes have read the old contents
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned row = 16 * m + 8 * half + lane / 4;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const uint32_t word = PackPair(c[m][n][2 * half], c[m][n][2 * half + 1]);
        memcpy(tile + Rows::Offset(row, n) + lane % 4 * 4, &word, sizeof(word));
      }
    }
  }
  __syncwarp();
  for (unsigned place = lane; place < 16 * kM * Rows::kChunks; place += 32) {
    const unsigned row = place / Rows::kChunks, chunk = place % Rows::kChunks;
    if (static_cast<int>(row) >= rows) return;
    *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
        *reinterpret_cast<const uint4*>(tile + Rows::Offset(row, chunk));
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_TILE_CUH_
