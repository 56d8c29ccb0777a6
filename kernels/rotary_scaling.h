#ifndef STAGECOACH_KERNELS_ROTARY_SCALING_H_
#define STAGECOACH_KERNELS_ROTARY_SCALING_H_

#include <cstdint>

namespace stagecoach::kernels {

// A change of the frequencies of rotary positions with which a model was trained further, for texts
// longer than its original ones: by a factor (Chen et al. 2023, "linear"), or as in Llama 3.1,
// where only pairs that turn slowly are changed.
struct RotaryScaling {
  double factor = 1.0;  // of the length, at least 1; 1: none
  // The context of the original training; 0: all frequencies are divided by the factor. Otherwise
  // those of pairs that make at most `low_turns` turns in it are, those of pairs that make
  // `high_turns` or more are kept, and what lies between is interpolated.
  int64_t original_positions = 0;
  double low_turns = 1.0;
  double high_turns = 4.0;

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// Returns whether the numbers are those of a scaling: all finite, the factor at least 1, and
// low_turns, positive, below high_turns.
inline bool IsRotaryScaling(const RotaryScaling& scaling) {
  constexpr double kMax = 1e12;
  return scaling.factor >= 1.0 && scaling.factor <= kMax && scaling.original_positions >= 0 &&
         scaling.low_turns > 0.0 && scaling.low_turns < scaling.high_turns &&
         scaling.high_turns <= kMax;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_ROTARY_SCALING_H_
