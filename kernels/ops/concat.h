#ifndef STAGECOACH_KERNELS_OPS_CONCAT_H_
#define STAGECOACH_KERNELS_OPS_CONCAT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class ConcatOp;

struct ConcatShape {
  using Op = ConcatOp;

  int64_t rows = 1;    // R
  int64_t first = 1;   // A
  int64_t second = 1;  // B
};

// Each row of `whole` is one of `first` and then one of `second`.
//   first (R, A)   second (R, B)   whole (R, A + B), of the device's activation type
//
// InvalidArgument: an extent below 1 or too large.
class ConcatOp : public Operation {
 public:
  virtual absl::Status Join(Stream& stream, const Tensor& first, const Tensor& second,
                            const Tensor& whole) = 0;
  // `first` or `second` may be empty if it is not wanted.
  virtual absl::Status Split(Stream& stream, const Tensor& whole, const Tensor& first,
                             const Tensor& second) = 0;
};

absl::StatusOr<std::unique_ptr<ConcatOp>> CreateOnCpu(const ConcatShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<ConcatOp>> CreateOnCuda(const ConcatShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_CONCAT_H_
