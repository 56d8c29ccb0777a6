#ifndef STAGECOACH_KERNELS_OPS_TRANSPOSE_H_
#define STAGECOACH_KERNELS_OPS_TRANSPOSE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class TransposeOp;

struct TransposeShape {
  using Op = TransposeOp;

  int64_t matrices = 1;  // N
  int64_t rows = 1;      // R
  int64_t columns = 1;   // C
};

// Computes y[n, c, r] = x[n, r, c]
//   x (N, R, C)   y (N, C, R), of the device's activation type
// If rows are the channels of images, it moves the channels last; if columns are, first.
//
// InvalidArgument: an extent below 1 or too large.
class TransposeOp : public Operation {
 public:
  // Transposes x into y. Their memory must not overlap.
  virtual absl::Status Apply(Stream& stream, const Tensor& x, const Tensor& y) = 0;
};

absl::StatusOr<std::unique_ptr<TransposeOp>> CreateOnCpu(const TransposeShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<TransposeOp>> CreateOnCuda(const TransposeShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_TRANSPOSE_H_
