#include "kernels/ops/pooling.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/images/pooling_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaPooling final : public PoolingOp {
 public:
  CudaPooling(const PoolingShape& shape, ElementType type)
      : extents_({.is_max = shape.kind == Pooling::kMax,
                  .samples = static_cast<int32_t>(shape.samples),
                  .channels = static_cast<int32_t>(shape.channels),
                  .height = static_cast<int32_t>(shape.height),
                  .width = static_cast<int32_t>(shape.width),
                  .output_height = static_cast<int32_t>(shape.output_height()),
                  .output_width = static_cast<int32_t>(shape.output_width()),
                  .kernel_height = static_cast<int32_t>(shape.kernel_height),
                  .kernel_width = static_cast<int32_t>(shape.kernel_width),
                  .stride = static_cast<int32_t>(shape.stride),
                  .padding = static_cast<int32_t>(shape.padding)}),
        type_(type) {}

  int64_t workspace_bytes() const override { return 0; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) override {
    return CudaStatus(
        LaunchPoolingForward(AsCuda(stream).compute(), type_, extents_, x.data, y.data),
        "LaunchPoolingForward");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& dx,
                             std::byte* /*workspace*/) override {
    return CudaStatus(
        LaunchPoolingBackward(AsCuda(stream).compute(), type_, extents_, dy.data, x.data, dx.data),
        "LaunchPoolingBackward");
  }

 private:
  const PoolingExtents extents_;
  const ElementType type_;
};

// Checks also the products that count elements of an image, and rows of all images, in 32 bits.
bool ArePoolingExtents(const PoolingShape& shape) {
  return IsCudaExtent(shape.samples) && IsCudaExtent(shape.channels) &&
         IsCudaExtent(shape.height) && IsCudaExtent(shape.width) &&
         IsCudaExtent(shape.kernel_height) && IsCudaExtent(shape.kernel_width) &&
         IsCudaExtent(shape.stride) && IsCudaExtent(shape.samples * shape.channels) &&
         IsCudaExtent(shape.samples * shape.height) && IsCudaExtent(shape.height * shape.width) &&
         IsCudaExtent(shape.height * shape.width * shape.channels) && shape.padding >= 0 &&
         shape.padding <= shape.kernel_height / 2 && shape.padding <= shape.kernel_width / 2 &&
         IsCudaExtent(shape.output_height()) && IsCudaExtent(shape.output_width()) &&
         IsCudaExtent(shape.samples * shape.output_height()) &&
         IsCudaExtent(shape.output_height() * shape.output_width() * shape.channels);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PoolingOp>> CreateOnCuda(const PoolingShape& shape, Device& device) {
  if (!ArePoolingExtents(shape)) {
    return PoolingRefusal(shape, kMaxCudaExtent);
  }
  return std::unique_ptr<PoolingOp>(
      std::make_unique<CudaPooling>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
