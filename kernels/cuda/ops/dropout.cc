#include "kernels/ops/dropout.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/dropout_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaDropout final : public DropoutOp {
 public:
  CudaDropout(const DropoutShape& shape, ElementType type) : shape_(shape), type_(type) {}

  absl::Status Apply(Stream& stream, const DropoutKey& key, const Tensor& x,
                     const Tensor& y) override {
    const DropoutArguments arguments = {.rows = shape_.rows,
                                        .elements = shape_.elements,
                                        .threshold = DropoutThreshold(shape_.rate),
                                        .scale = DropoutScale(shape_.rate),
                                        .seed = key.seed,
                                        .random_stream = key.stream,
                                        .first_sample = key.first_sample,
                                        .x = x.data,
                                        .y = y.data};
    return CudaStatus(LaunchDropout(AsCuda(stream).compute(), type_, arguments), "LaunchDropout");
  }

 private:
  const DropoutShape shape_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DropoutOp>> CreateOnCuda(const DropoutShape& shape, Device& device) {
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.elements) || !(shape.rate >= 0.0F) ||
      !(shape.rate < 1.0F)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: extents must be 1 to ", kMaxCudaExtent,
                                                   " and the rate from 0 to below 1: ", shape.rows,
                                                   " rows, ", shape.elements, " elements, rate ",
                                                   shape.rate));
  }
  return std::unique_ptr<DropoutOp>(
      std::make_unique<CudaDropout>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
