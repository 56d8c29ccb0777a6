#include "kernels/cpu/ops/attention_parts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace stagecoach::kernels {
namespace {

// Whether the extents, and their products by which tasks and bytes are counted, are in range.
bool AreAttentionExtents(const AttentionShape& shape) {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  if (!IsExtent(B) || !IsExtent(T) || !IsExtent(shape.heads) || !IsExtent(shape.kv_heads) ||
      !IsExtent(D)) {
    return false;
  }
  const int64_t all_heads = shape.heads + 2 * shape.kv_heads;
  return IsExtent(all_heads) && IsExtent(B * T) && IsExtent(B * T * all_heads) &&
         IsExtent(all_heads * D) && IsExtent(T * D);
}

}  // namespace

absl::Status CheckAttention(const AttentionShape& shape) {
  if (!AreAttentionExtents(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: extents, samples x positions x heads and head size x heads or positions must "
        "be 1 to ",
        kMaxExtent, ": ", shape.samples, " samples, ", shape.positions, " positions, ", shape.heads,
        " heads, ", shape.kv_heads, " kv heads, head size ", shape.head_size));
  }
  if (shape.heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: ", shape.kv_heads, " kv heads do not divide ", shape.heads, " heads"));
  }
  if (!(shape.rotary_base >= 0.0F) || std::isinf(shape.rotary_base)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: the rotary base must be positive, or 0 for none, not ", shape.rotary_base));
  }
  if (shape.rotary_base > 0.0F && shape.head_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: with a rotary base the head size must be even, not ", shape.head_size));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
