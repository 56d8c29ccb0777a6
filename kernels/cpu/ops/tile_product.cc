#include "kernels/cpu/ops/tile_product.h"

#include <cstring>

namespace stagecoach::kernels {
namespace {

// A block of c stays in registers throughout its sum: kBlockRows x 2 vectors of it, 2 vectors of a
// row of b, and one number of a.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;  // of 32 registers
constexpr int kBlockRows = 8;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;  // of 16 registers
constexpr int kBlockRows = 6;
#else
constexpr int kVectorBytes = 16;
constexpr int kBlockRows = 6;
#endif
constexpr int64_t kFloatBytes = sizeof(float);
using Wide = float __attribute__((vector_size(kVectorBytes)));
using Narrow = float __attribute__((vector_size(16)));

struct Problem {
  int64_t k;
  TileOperand a;
  const float* b;
  int64_t ldb;
  bool accumulate;
  float* c;
  int64_t ldc;
};

template <typename Vector>
Vector Load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(Vector));
  return vector;
}

// kRows rows of c from row i on, and kVectors vectors of columns from column j on.
template <int kRows, typename Vector, int kVectors>
void Block(const Problem& p, int64_t i, int64_t j) {
  constexpr int64_t kLanes = sizeof(Vector) / kFloatBytes;
  Vector sums[kRows][kVectors];
  float* const c = p.c + i * p.ldc + j;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.accumulate ? Load<Vector>(c + r * p.ldc + v * kLanes) : Vector{};
    }
  }
  const float* a = p.a.data + i * p.a.row;
  const float* b = p.b + j;
  for (int64_t k = 0; k < p.k; ++k, a += p.a.column, b += p.ldb) {
    Vector row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = Load<Vector>(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * p.a.row];
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(c + r * p.ldc + v * kLanes, &sums[r][v], sizeof(Vector));
    }
  }
}

template <typename Vector, int kVectors>
void Columns(const Problem& p, int64_t m, int64_t j) {
  int64_t i = 0;
  for (; i + kBlockRows <= m; i += kBlockRows) Block<kBlockRows, Vector, kVectors>(p, i, j);
  for (; i + 4 <= m; i += 4) Block<4, Vector, kVectors>(p, i, j);
  for (; i + 2 <= m; i += 2) Block<2, Vector, kVectors>(p, i, j);
  for (; i < m; ++i) Block<1, Vector, kVectors>(p, i, j);
}

}  // namespace

void TileProduct(int64_t m, int64_t n, int64_t k, const TileOperand& a, const float* b, int64_t ldb,
                 bool accumulate, float* c, int64_t ldc) {
  const Problem problem = {k, a, b, ldb, accumulate, c, ldc};
  constexpr int64_t kLanes = kVectorBytes / kFloatBytes;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) Columns<Wide, 2>(problem, m, j);
  for (; j + kLanes <= n; j += kLanes) Columns<Wide, 1>(problem, m, j);
  for (; j + 4 <= n; j += 4) Columns<Narrow, 1>(problem, m, j);
  for (; j < n; ++j) Columns<float, 1>(problem, m, j);
}

}  // namespace stagecoach::kernels
