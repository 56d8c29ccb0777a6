#include "kernels/ops/transpose.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/images/transpose_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaTranspose final : public TransposeOp {
 public:
  CudaTranspose(const TransposeShape& shape, ElementType type) : shape_(shape), type_(type) {}

  absl::Status Apply(Stream& stream, const Tensor& x, const Tensor& y) override {
    return CudaStatus(LaunchTranspose(AsCuda(stream).compute(), type_, shape_.matrices, shape_.rows,
                                      shape_.columns, x.data, y.data),
                      "LaunchTranspose");
  }

 private:
  const TransposeShape shape_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransposeOp>> CreateOnCuda(const TransposeShape& shape,
                                                          Device& device) {
  if (!IsCudaExtent(shape.matrices) || !IsCudaExtent(shape.rows) || !IsCudaExtent(shape.columns)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transpose: extents must be 1 to ", kMaxCudaExtent, ": ", shape.matrices,
                     " matrices of ", shape.rows, " x ", shape.columns));
  }
  return std::unique_ptr<TransposeOp>(
      std::make_unique<CudaTranspose>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
