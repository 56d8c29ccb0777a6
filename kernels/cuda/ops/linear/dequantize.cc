#include "kernels/ops/dequantize.h"

#include <memory>

#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/cuda/ops/linear/quantized_operand.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaDequantize final : public DequantizeOp {
 public:
  CudaDequantize(const QuantizedMatrix& matrix, ElementType type) : matrix_(matrix), type_(type) {}

  absl::Status Run(Stream& stream, const Tensor& stored, const Tensor& values) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    if (matrix_.is_int8()) {
      return CudaStatus(
          LaunchDequantizeInt8(compute, type_, matrix_.Int8At(stored.data), values.data),
          "LaunchDequantizeInt8");
    }
    const Nf4Data data = matrix_.Nf4At(stored.data);
    for (const Nf4Parts& parts : matrix_.parts()) {
      RETURN_IF_ERROR(CudaStatus(LaunchDequantizeNf4(compute, type_, parts, data, values.data),
                                 "LaunchDequantizeNf4"));
    }
    return absl::OkStatus();
  }

 private:
  const QuantizedOperand matrix_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCuda(const DequantizeShape& shape,
                                                           Device& device) {
  RETURN_IF_ERROR(CheckQuantizedMatrix(shape.matrix, kMaxCudaExtent));
  return std::unique_ptr<DequantizeOp>(
      std::make_unique<CudaDequantize>(shape.matrix, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
