#ifndef STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_SOFTMAX_H_
#define STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_SOFTMAX_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/math.h"

// The softmax of a head over tiles of classes.
namespace stagecoach::kernels {

// The number of rows that one pass over a tile of logits handles: their sums stay in registers.
inline constexpr int64_t kHeadLanes = 32;
// The number of exponentials that are added in float before their sum is added to one in double.
inline constexpr int64_t kHeadFloatTerms = 8;

// The numbers from which a row's gradient of its logits is computed: dz_c = e^(z_c - maximum)
// factor - scale [c = label].
struct RowSoftmax {
  float maximum;
  float factor;  // scale / (sum of e^(z_c - maximum))
  float scale;
  int32_t label;  // -1: the row does not count
};
// Of a row that does not count: padding, or one with kNoLabel.
inline constexpr RowSoftmax kNoGradient = {0.0F, 0.0F, 0.0F, -1};

// The contribution of a tile of classes to the softmax of a tile of rows; each array has an entry
// for each row.
struct Partial {
  float* maximum;
  int32_t* largest;  // the first class that has it
  double* sum;       // of e^(z_c - maximum)
};

// Returns a logit that stays between -cap and cap. Products that are infinite do not vanish in it.
inline float Capped(float z, float cap) { return cap * Tanh(z / cap) + 0.0F * z; }

// Processes `lanes` rows from `first` on of a tile of logits z (classes, rows): writes its partial
// results, and replaces z by e^(z - maximum) if kReplaces. `lanes` is at most kHeadLanes, and a
// constant if it equals that.
template <bool kReplaces, typename Lanes>
void ExponentialsOfLanes(float* z, int64_t classes, int64_t rows, int64_t first, Lanes lanes,
                         int32_t first_class, const Partial& partial) {
  float maximum[kHeadLanes];
  int32_t largest[kHeadLanes] = {};
  double sum[kHeadLanes] = {};
  std::fill_n(maximum, kHeadLanes, -std::numeric_limits<float>::infinity());
  float* const begin = z + first;
  for (int64_t c = 0; c < classes; ++c) {
    const float* const row = begin + c * rows;
    for (int64_t l = 0; l < lanes; ++l) {
      const bool is_larger = row[l] > maximum[l];
      maximum[l] = is_larger ? row[l] : maximum[l];
      largest[l] = is_larger ? static_cast<int32_t>(c) : largest[l];
    }
  }
  for (int64_t c0 = 0; c0 < classes; c0 += kHeadFloatTerms) {
    float terms[kHeadLanes] = {};
    for (int64_t c = c0; c < std::min(c0 + kHeadFloatTerms, classes); ++c) {
      float* const row = begin + c * rows;
      for (int64_t l = 0; l < lanes; ++l) {
        const float exponential = FastExp(row[l] - maximum[l]);
        if constexpr (kReplaces) row[l] = exponential;
        terms[l] += exponential;
      }
    }
    for (int64_t l = 0; l < lanes; ++l) sum[l] += static_cast<double>(terms[l]);
  }
  for (int64_t l = 0; l < lanes; ++l) {
    partial.maximum[first + l] = maximum[l];
    partial.largest[first + l] = first_class + largest[l];
    partial.sum[first + l] = sum[l];
  }
}

// All passes use this one function, so that recomputed results have the same bits.
template <bool kReplaces>
void Exponentials(float* z, int64_t classes, int64_t rows, int32_t first_class,
                  const Partial& partial) {
  int64_t first = 0;
  for (; first + kHeadLanes <= rows; first += kHeadLanes) {
    ExponentialsOfLanes<kReplaces>(z, classes, rows, first,
                                   std::integral_constant<int64_t, kHeadLanes>(), first_class,
                                   partial);
  }
  if (first < rows) {
    ExponentialsOfLanes<kReplaces>(z, classes, rows, first, rows - first, first_class, partial);
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_SOFTMAX_H_
