#ifndef STAGECOACH_KERNELS_OPS_COLUMNS_H_
#define STAGECOACH_KERNELS_OPS_COLUMNS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class ColumnsOp;

struct ColumnsShape {
  using Op = ColumnsOp;

  int64_t rows = 1;     // R
  int64_t columns = 1;  // C: of the whole
  int64_t first = 0;    // the first column of the part
  int64_t count = 1;    // N: columns of the part
};

// A range of the columns of a matrix, `first` to first + N - 1: what a low-rank adapter adds to a
// part of a linear layer's outputs.
//   whole (R, C)   part (R, N), of the device's activation type
// Products and sums are each rounded to float32, never fused, and a result then once to its type:
// the bits are the same on every processor and GPU, except for denormal numbers, which are zero on
// CPU devices. `whole` and `part` do not overlap.
//
// InvalidArgument: an extent below 1 or too large, columns beyond those of the whole.
class ColumnsOp : public Operation {
 public:
  // Computes whole += scale part, in these columns; the others are not touched.
  virtual absl::Status Add(Stream& stream, const Tensor& part, float scale,
                           const Tensor& whole) = 0;
  // Computes part = scale times these columns.
  virtual absl::Status Take(Stream& stream, const Tensor& whole, float scale,
                            const Tensor& part) = 0;
};

// Returns InvalidArgument if a backend whose extents are at most `max_extent` refuses the shape.
absl::Status CheckColumns(const ColumnsShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<ColumnsOp>> CreateOnCpu(const ColumnsShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<ColumnsOp>> CreateOnCuda(const ColumnsShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_COLUMNS_H_
