#include "kernels/ops/attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {
namespace {

// Returns whether the extents, and their products that count tasks and bytes, are in range.
bool AreAttentionExtents(const AttentionShape& shape, int64_t max_extent) {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  const auto is_extent = [&](int64_t value) { return value >= 1 && value <= max_extent; };
  if (!is_extent(B) || !is_extent(T) || !is_extent(shape.heads) || !is_extent(shape.kv_heads) ||
      !is_extent(D)) {
    return false;
  }
  const int64_t all_heads = shape.heads + 2 * shape.kv_heads;
  return is_extent(all_heads) && is_extent(B * T) && is_extent(B * T * all_heads) &&
         is_extent(all_heads * D) && is_extent(T * D);
}

// Returns whether the value is that of an option that is positive, or 0 for none.
bool IsPositiveOrNone(float value) { return value >= 0.0F && !std::isinf(value); }

}  // namespace

absl::Status CheckAttention(const AttentionShape& shape, int64_t max_extent) {
  if (!AreAttentionExtents(shape, max_extent)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: extents, samples x positions x heads and head size x heads or positions must "
        "be 1 to ",
        max_extent, ": ", shape.samples, " samples, ", shape.positions, " positions, ", shape.heads,
        " heads, ", shape.kv_heads, " kv heads, head size ", shape.head_size));
  }
  if (shape.heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: ", shape.kv_heads, " kv heads do not divide ", shape.heads, " heads"));
  }
  if (!IsPositiveOrNone(shape.rotary_base)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: the rotary base must be positive, or 0 for none, not ", shape.rotary_base));
  }
  if (shape.rotary_base > 0.0F && shape.head_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: with a rotary base the head size must be even, not ", shape.head_size));
  }
  if (shape.rotary_size < 0 || shape.rotary_size > shape.head_size || shape.rotary_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: the numbers of a head that are rotated must be even, and at most ",
                     shape.head_size, ", not ", shape.rotary_size));
  }
  const int64_t pairs = (shape.rotary_size > 0 ? shape.rotary_size : shape.head_size) / 2;
  if (!IsRotaryScaling(shape.rotary_scaling, pairs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: frequencies are scaled by ", shape.rotary_scaling.pairs,
                     " divisors and rotations by ", shape.rotary_scaling.scale,
                     ", expected positive numbers, and a divisor for each of the ", pairs,
                     " pairs, which may be at most ", kMaxScaledPairs));
  }
  if (shape.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: the window must be positive, or 0 for none, not ", shape.window));
  }
  if (!IsPositiveOrNone(shape.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: the scale of scores must be positive, or 0 for that of the head "
                     "size, not ",
                     shape.scale));
  }
  if (!IsPositiveOrNone(shape.score_cap)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: the cap of scores must be positive, or 0 for none, not ", shape.score_cap));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
