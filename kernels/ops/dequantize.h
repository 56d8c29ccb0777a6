#ifndef STAGECOACH_KERNELS_OPS_DEQUANTIZE_H_
#define STAGECOACH_KERNELS_OPS_DEQUANTIZE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class DequantizeOp;

struct DequantizeShape {
  using Op = DequantizeOp;

  QuantizedMatrix matrix;
};

// The values of a stored matrix:
//   stored (matrix.bytes()) uint8   values (inputs, outputs), of the device's activation type
// They are those of Dequantize (quantized_matrix.h), rounded once to their type: the bits are the
// same on every processor and GPU. `stored` is aligned as tensors are.
//
// InvalidArgument: errors of CheckQuantizedMatrix.
class DequantizeOp : public Operation {
 public:
  virtual absl::Status Run(Stream& stream, const Tensor& stored, const Tensor& values) = 0;
};

absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCpu(const DequantizeShape& shape,
                                                          Device& device);
absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCuda(const DequantizeShape& shape,
                                                           Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_DEQUANTIZE_H_
