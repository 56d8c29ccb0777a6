#include "kernels/ops/swiglu.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/swiglu_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaSwiGlu final : public SwiGluOp {
 public:
  CudaSwiGlu(const SwiGluShape& shape, ElementType type) : shape_(shape), type_(type) {}

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) override {
    const SwiGluArguments arguments = {.rows = shape_.rows,
                                       .features = shape_.features,
                                       .gate = shape_.gate,
                                       .x = x.data,
                                       .y = y.data};
    return CudaStatus(LaunchSwiGluForward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchSwiGluForward");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                             const Tensor& dx) override {
    const SwiGluArguments arguments = {.rows = shape_.rows,
                                       .features = shape_.features,
                                       .gate = shape_.gate,
                                       .x = x.data,
                                       .dy = dy.data,
                                       .dx = dx.data};
    return CudaStatus(LaunchSwiGluBackward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchSwiGluBackward");
  }

 private:
  const SwiGluShape shape_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCuda(const SwiGluShape& shape, Device& device) {
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.features)) {
    return absl::InvalidArgumentError(absl::StrCat("swiglu: extents must be 1 to ", kMaxCudaExtent,
                                                   ": ", shape.rows, " rows, ", shape.features,
                                                   " features"));
  }
  return std::unique_ptr<SwiGluOp>(
      std::make_unique<CudaSwiGlu>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
