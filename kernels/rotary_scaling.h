#ifndef STAGECOACH_KERNELS_ROTARY_SCALING_H_
#define STAGECOACH_KERNELS_ROTARY_SCALING_H_

#include <cstdint>

namespace stagecoach::kernels {

// More pairs of a head than have been scaled anywhere.
inline constexpr int64_t kMaxScaledPairs = 128;

// A change of the rotations of queries and keys with which a model was trained further, for texts
// longer than its original ones. Each frequency is divided by a number of its own, whichever kind
// of scaling these come from, and what is rotated is multiplied by `scale`.
struct RotaryScaling {
  int64_t pairs = 0;  // that are rotated, and have a divisor; 0: all divisors are 1
  double scale = 1.0;
  double divisors[kMaxScaledPairs] = {};

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// Returns whether the numbers are those of a scaling of that many pairs: all positive and finite.
inline bool IsRotaryScaling(const RotaryScaling& scaling, int64_t pairs) {
  constexpr double kMax = 1e12;
  const auto is_factor = [](double value) { return value >= 1.0 / kMax && value <= kMax; };
  if (scaling.pairs != 0 && (scaling.pairs != pairs || pairs > kMaxScaledPairs)) return false;
  for (int64_t i = 0; i < scaling.pairs; ++i) {
    if (!is_factor(scaling.divisors[i])) return false;
  }
  return is_factor(scaling.scale);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_ROTARY_SCALING_H_
