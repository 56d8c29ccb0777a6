#ifndef STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_
#define STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/math.h"

// Code that both forms of attention on a CPU share.
namespace stagecoach::kernels {

// If a query sees a part of the keys, scores are skipped in blocks of this many keys and queries.
constexpr int64_t kDiagonalBlock = 16;
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Returns e^x, which is 0 far below 0.
inline float SoftmaxWeight(float x) { return x < -87.0F ? 0.0F : FastExp(x); }

// The sums of each query of a tile, over the keys so far.
struct SoftmaxSums {
  float* largest;
  float* correction;  // factor for the sums before the last tile of keys
  float* total;
};

// Computes the online softmax (Milakov & Gimelshein 2018): scores (n keys, m queries), whose rows
// are `stride` apart and begin with column first_column(key), become weights relative to the
// largest of this tile and those before; `total` becomes their sum, and `correction` the factor
// that accounts for a new largest score.
template <typename FirstColumn>
void OnlineSoftmax(int64_t n, int64_t m, float* scores, int64_t stride, FirstColumn first_column,
                   const SoftmaxSums& sums) {
  float* __restrict const largest = sums.largest;
  float* __restrict const correction = sums.correction;
  float* __restrict const total = sums.total;
  std::copy_n(largest, m, correction);
  for (int64_t r = 0; r < n; ++r) {
    const float* __restrict const row = scores + r * stride;
    for (int64_t c = first_column(r); c < m; ++c) {
      largest[c] = largest[c] < row[c] ? row[c] : largest[c];
    }
  }
  for (int64_t c = 0; c < m; ++c) {
    correction[c] = SoftmaxWeight(correction[c] - largest[c]);
    total[c] *= correction[c];
  }
  for (int64_t r = 0; r < n; ++r) {
    float* __restrict const row = scores + r * stride;
    for (int64_t c = first_column(r); c < m; ++c) {
      row[c] = SoftmaxWeight(row[c] - largest[c]);
      total[c] += row[c];
    }
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_
