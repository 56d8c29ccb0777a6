#include "kernels/ops/linear.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

absl::Status CheckLinear(const LinearShape& shape, int64_t max_extent) {
  for (const int64_t extent : {shape.rows, shape.inputs, shape.outputs}) {
    if (extent >= 1 && extent <= max_extent) continue;
    return absl::InvalidArgumentError(absl::StrCat("linear: extents must be 1 to ", max_extent,
                                                   ": ", shape.rows, " rows, ", shape.inputs,
                                                   " inputs, ", shape.outputs, " outputs"));
  }
  if (!shape.quantized.has_value()) return absl::OkStatus();
  const absl::Status is_matrix = CheckQuantizedMatrix(*shape.quantized, max_extent);
  if (!is_matrix.ok()) return is_matrix;
  if (shape.independent_rows && shape.quantized->inputs == shape.inputs &&
      shape.quantized->outputs == shape.outputs) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("linear: takes no quantized weight ", shape.quantized->ToString(), " for ",
                   shape.independent_rows ? "" : "rows that are not independent, ", shape.inputs,
                   " inputs, ", shape.outputs, " outputs"));
}

}  // namespace stagecoach::kernels
