#ifndef STAGECOACH_ENGINE_NN_LAYERS_ROTARY_H_
#define STAGECOACH_ENGINE_NN_LAYERS_ROTARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/text/json.h"
#include "kernels/rotary_scaling.h"

namespace stagecoach::engine {

// How the frequencies of rotary positions are changed for texts longer than the original ones: the
// kinds of the library transformers.
enum class RotaryKind : uint8_t {
  // All frequencies are divided by the factor (Chen et al. 2023, "linear"). With
  // original_positions,
  // those of pairs that make at most low_turns turns in these are, those of pairs that make
  // high_turns or more are kept, and what lies between is interpolated ("llama3").
  kLinear,
  // The same by the numbers of the pairs between those two (Peng et al. 2023), which are rounded to
  // whole ones, away from each other, if `truncates`.
  kYarn,
  // Each frequency is divided by a number of its own (Ding et al. 2024): short_divisors, or
  // long_divisors if a sample has more than original_positions.
  kLongRope,
  // The base grows with a sample that has more than original_positions, by the factor
  // ("NTK-aware").
  kDynamic,
};

// Regular value type. Without a change, it is as constructed.
struct RotaryScaling {
  RotaryKind kind = RotaryKind::kLinear;
  double factor = 1.0;             // of the length, at least 1
  int64_t original_positions = 0;  // of the original training; 0: unknown, of kLinear alone
  double low_turns = 1.0, high_turns = 4.0;
  bool truncates = true;  // kYarn's
  double scale = 1.0;     // kYarn's and kLongRope's: of what is rotated
  std::vector<double> short_divisors = {}, long_divisors = {};  // kLongRope's

  bool is_none() const { return *this == RotaryScaling(); }

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// Returns InvalidArgument, saying what is wrong: numbers that are not finite, a factor below 1,
// low_turns that are not positive and below high_turns, no original_positions where they are
// needed, lists of divisors of different lengths.
absl::Status CheckRotaryScaling(const RotaryScaling& scaling);

// What a scaling is for heads of which `rotated` numbers are rotated, in samples (or sequences, if
// positions arrive one by one) of at most `positions`.
struct ResolvedRotary {
  float base = 0.0F;
  kernels::RotaryScaling scaling;
};
ResolvedRotary ResolveRotary(const RotaryScaling& scaling, float base, int64_t rotated,
                             int64_t positions);

// Returns the table of a model file, "{ factor = 4.0 }", which ParseRotaryScaling reads.
std::string RotaryScalingText(const RotaryScaling& scaling);
absl::StatusOr<RotaryScaling> ParseRotaryScaling(base::ObjectReader reader);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_ROTARY_H_
