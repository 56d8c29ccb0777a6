#include "kernels/ops/concat.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/concat_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaConcat final : public ConcatOp {
 public:
  CudaConcat(const ConcatShape& shape, ElementType type)
      : extents_{shape.rows, shape.first, shape.second}, type_(type) {}

  absl::Status Join(Stream& stream, const Tensor& first, const Tensor& second,
                    const Tensor& whole) override {
    return CudaStatus(
        LaunchJoin(AsCuda(stream).compute(), type_, extents_, first.data, second.data, whole.data),
        "LaunchJoin");
  }

  absl::Status Split(Stream& stream, const Tensor& whole, const Tensor& first,
                     const Tensor& second) override {
    return CudaStatus(
        LaunchSplit(AsCuda(stream).compute(), type_, extents_, whole.data, first.data, second.data),
        "LaunchSplit");
  }

 private:
  const ConcatExtents extents_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ConcatOp>> CreateOnCuda(const ConcatShape& shape, Device& device) {
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.first) || !IsCudaExtent(shape.second)) {
    return absl::InvalidArgumentError(absl::StrCat("concat: extents must be 1 to ", kMaxCudaExtent,
                                                   ": ", shape.rows, " rows of ", shape.first,
                                                   " and ", shape.second));
  }
  return std::unique_ptr<ConcatOp>(
      std::make_unique<CudaConcat>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
