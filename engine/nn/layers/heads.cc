#include "engine/nn/layers/heads.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

absl::StatusOr<int64_t> HeadSizeOf(absl::string_view layer, int64_t heads, int64_t kv_heads,
                                   const Shape& input) {
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer, ": needs heads, and kv heads that divide them: ", heads, " heads, ",
                     kv_heads, " kv heads"));
  }
  // Computed as a quotient: the number of heads is arbitrary, and their sum must not overflow.
  const int64_t width = input.rank() == 2 ? input.dim(1) : 0;
  const int64_t group = std::min(heads, width) / kv_heads;
  const int64_t head_size = width / kv_heads / (group + 2);
  if (heads > width || head_size < 1 || head_size * kv_heads * (group + 2) != width) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer, ": takes samples [positions, width], with a width that is a multiple of ", heads,
        " heads of queries and ", kv_heads, " each of keys and values, not ", input.ToString()));
  }
  return head_size;
}

}  // namespace stagecoach::engine
