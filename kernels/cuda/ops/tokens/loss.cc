#include "kernels/ops/loss.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/tokens/loss_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaLoss final : public LossOp {
 public:
  CudaLoss(LaunchLossFunction* launch, const LossShape& shape, ElementType type)
      : launch_(launch), shape_(shape), type_(type) {}

  int64_t workspace_bytes() const override {
    return shape_.rows * static_cast<int64_t>(sizeof(LossOfRow));
  }

  absl::Status Compute(Stream& stream, const Tensor& output, const Tensor& targets,
                       const LossTerms* terms, const Tensor& gradient, const Tensor& result,
                       std::byte* workspace) override {
    const bool has_values = targets.dtype == DType::kFloat32;
    const LossArguments arguments = {.rows = shape_.rows,
                                     .classes = shape_.classes,
                                     .positions = shape_.positions,
                                     .terms = terms,
                                     .output = output.data,
                                     .labels = has_values ? nullptr : targets.i32(),
                                     .values = has_values ? targets.f32() : nullptr,
                                     .gradient = gradient.data,
                                     .workspace = reinterpret_cast<LossOfRow*>(workspace),
                                     .result = result.f64()};
    return CudaStatus(launch_(AsCuda(stream).compute(), type_, arguments), "LaunchLoss");
  }

 private:
  LaunchLossFunction* const launch_;
  const LossShape shape_;
  const ElementType type_;
};

absl::StatusOr<std::unique_ptr<LossOp>> CreateLoss(LaunchLossFunction* launch,
                                                   const LossShape& shape, DType type) {
  if (shape.positions < 1 || shape.rows % shape.positions != 0) {
    return absl::InvalidArgumentError(absl::StrCat("loss: ", shape.rows, " rows are no samples of ",
                                                   shape.positions, " positions"));
  }
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.classes)) {
    return absl::InvalidArgumentError(absl::StrCat("loss: extents must be 1 to ", kMaxCudaExtent,
                                                   ": ", shape.rows, " rows, ", shape.classes,
                                                   " classes"));
  }
  return std::unique_ptr<LossOp>(std::make_unique<CudaLoss>(launch, shape, ElementTypeOf(type)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const SoftmaxCrossEntropyShape& shape,
                                                     Device& device) {
  return CreateLoss(LaunchSoftmaxCrossEntropy, shape, device.activation_type());
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const MeanSquaredErrorShape& shape,
                                                     Device& device) {
  return CreateLoss(LaunchMeanSquaredError, shape, device.activation_type());
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const MeanSquaredErrorOfValuesShape& shape,
                                                     Device& device) {
  return CreateLoss(LaunchMeanSquaredErrorOfValues, shape, device.activation_type());
}

}  // namespace stagecoach::kernels
