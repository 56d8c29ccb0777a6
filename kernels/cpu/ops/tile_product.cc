#include "kernels/cpu/ops/tile_product.h"

#include <cstring>

#include "kernels/cpu/ops/multiply_add.h"
#include "kernels/cpu/ops/tile_shape.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kLineValues = 64 / kFloatBytes;  // values in a cache line
using Wide = float __attribute__((vector_size(kTileVectorBytes)));
using Narrow = float __attribute__((vector_size(16)));

struct Problem {
  int64_t n;
  int64_t k;
  TileOperand a;
  TilePanels b;
  float* c;
  int64_t ldc;
};

// Loads the first kCount numbers of a vector; the others are 0.
template <typename Vector, int64_t kCount>
Vector Load(const float* from) {
  Vector vector{};
  std::memcpy(&vector, from, kCount * kFloatBytes);
  return vector;
}

// Takes the vector by value: one that is copied from its place would be kept in memory throughout.
template <int64_t kCount, typename Vector>
void Store(Vector vector, float* to) {
  std::memcpy(to, &vector, kCount * kFloatBytes);
}

template <typename Vector>
constexpr int64_t kLanesOf = sizeof(Vector) / kFloatBytes;

// Computes kRows rows of c from row i on, and kVectors vectors of columns from column j on, each of
// which has kCount.
template <bool kAccumulates, int kRows, typename Vector, int kVectors, int64_t kCount>
void Block(const Problem& p, int64_t i, int64_t j) {
  constexpr int64_t kLanes = kLanesOf<Vector>;
  Vector sums[kRows][kVectors];
  float* const c = p.c + i * p.ldc + j;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = kAccumulates ? Load<Vector, kCount>(c + r * p.ldc + v * kLanes) : Vector{};
    }
  }
  // The addends may come from memory. The next block is too close to prefetch, so the one after it
  // is prefetched; after the last columns come the first ones of the rows below.
  if constexpr (kAccumulates) {
    int64_t ahead = j + 2 * (kVectors * kLanes);
    if (ahead >= p.n) ahead += kTileRows * p.ldc - p.n;
    const float* const next = p.c + i * p.ldc + ahead;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < kVectors * kLanes; v += kLineValues) {
        __builtin_prefetch(next + r * p.ldc + v);
      }
    }
  }
  const float* a = p.a.data + i * p.a.row;
  const float* b =
      p.b.data + (p.b.panel == 0 ? j : j / kTileColumns * p.b.panel + j % kTileColumns);
  for (int64_t k = 0; k < p.k; ++k, a += p.a.column, b += p.b.row) {
    if (p.a.from_memory && k % kLineValues == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(a + (r + kTileRows) * p.a.row, 0, 2);
    }
    Vector row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = Load<Vector, kCount>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * p.a.row];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd(factor, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Store<kCount>(sums[r][v], c + r * p.ldc + v * kLanes);
    }
  }
}

template <bool kAccumulates, typename Vector, int kVectors, int64_t kCount = kLanesOf<Vector>>
void Columns(const Problem& p, int64_t m, int64_t j) {
  int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows)
    Block<kAccumulates, kTileRows, Vector, kVectors, kCount>(p, i, j);
  for (; i + 4 <= m; i += 4) Block<kAccumulates, 4, Vector, kVectors, kCount>(p, i, j);
  for (; i + 2 <= m; i += 2) Block<kAccumulates, 2, Vector, kVectors, kCount>(p, i, j);
  for (; i < m; ++i) Block<kAccumulates, 1, Vector, kVectors, kCount>(p, i, j);
}

template <bool kAccumulates>
void AllColumns(const Problem& p, int64_t m, int64_t n) {
  constexpr int64_t kLanes = kTileVectorBytes / kFloatBytes;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) Columns<kAccumulates, Wide, 2>(p, m, j);
  for (; j + kLanes <= n; j += kLanes) Columns<kAccumulates, Wide, 1>(p, m, j);
  for (; j + 4 <= n; j += 4) Columns<kAccumulates, Narrow, 1>(p, m, j);
  switch (n - j) {
    case 3:
      return Columns<kAccumulates, Narrow, 1, 3>(p, m, j);
    case 2:
      return Columns<kAccumulates, Narrow, 1, 2>(p, m, j);
    case 1:
      return Columns<kAccumulates, Narrow, 1, 1>(p, m, j);
    default:
      return;
  }
}

}  // namespace

void TileProduct(int64_t m, int64_t n, int64_t k, const TileOperand& a, const TilePanels& b,
                 bool accumulate, float* c, int64_t ldc) {
  const Problem problem = {n, k, a, b, c, ldc};
  return accumulate ? AllColumns<true>(problem, m, n) : AllColumns<false>(problem, m, n);
}

}  // namespace stagecoach::kernels
