#include "kernels/ops/activation.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaActivation final : public ActivationOp {
 public:
  CudaActivation(const ActivationShape& shape, ElementType type) : shape_(shape), type_(type) {}

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& addend,
                       const Tensor& y) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    if (addend.empty()) {
      const BiasArguments arguments = {
          .rows = shape_.rows, .columns = shape_.features, .product = x.data, .y = y.data};
      return CudaStatus(LaunchBias(compute, type_, shape_.activation, arguments), "LaunchBias");
    }
    return CudaStatus(LaunchActivationOfSum(compute, type_, shape_.activation, elements(), x.data,
                                            addend.data, y.data),
                      "LaunchActivationOfSum");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& known,
                             const Tensor& dx) override {
    const ActivationBackwardArguments arguments = {.rows = shape_.rows,
                                                   .columns = shape_.features,
                                                   .dy = dy.data,
                                                   .known = known.data,
                                                   .dz = dx.data};
    return CudaStatus(
        LaunchActivationBackward(AsCuda(stream).compute(), type_, shape_.activation, arguments),
        "LaunchActivationBackward");
  }

 private:
  int64_t elements() const { return shape_.rows * shape_.features; }

  const ActivationShape shape_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ActivationOp>> CreateOnCuda(const ActivationShape& shape,
                                                           Device& device) {
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.features)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ActivationName(shape.activation), ": extents must be 1 to ", kMaxCudaExtent,
                     ": ", shape.rows, " rows, ", shape.features, " features"));
  }
  return std::unique_ptr<ActivationOp>(
      std::make_unique<CudaActivation>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
