#include "kernels/ops/columns.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

absl::Status CheckColumns(const ColumnsShape& shape, int64_t max_extent) {
  const auto is_extent = [&](int64_t value) { return value >= 1 && value <= max_extent; };
  if (!is_extent(shape.rows) || !is_extent(shape.columns) || !is_extent(shape.count)) {
    return absl::InvalidArgumentError(absl::StrCat("columns: extents must be 1 to ", max_extent,
                                                   ": ", shape.count, " of ", shape.columns,
                                                   " columns, ", shape.rows, " rows"));
  }
  if (shape.first < 0 || shape.first > shape.columns - shape.count) {
    return absl::InvalidArgumentError(absl::StrCat("columns: ", shape.count, " from column ",
                                                   shape.first, " on are not within the ",
                                                   shape.columns, " of the whole"));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
