#include "kernels/ops/loss.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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

  // Makes it a loss with smoothed labels and weights, which are copied in the stream's order.
  absl::Status Weigh(const SoftmaxCrossEntropyShape& shape, Device& device) {
    label_smoothing_ = shape.label_smoothing;
    const auto classes = static_cast<double>(shape.classes);
    const double sum =
        shape.class_weights.empty()
            ? classes
            : std::accumulate(shape.class_weights.begin(), shape.class_weights.end(), 0.0);
    smoothed_total_ = static_cast<float>(static_cast<double>(label_smoothing_) / classes * sum);
    if (shape.class_weights.empty()) return absl::OkStatus();
    const int64_t bytes = shape.classes * static_cast<int64_t>(sizeof(float));
    ASSIGN_OR_RETURN(host_weights_, device.AllocateHost(bytes));
    ASSIGN_OR_RETURN(weights_, device.AllocateTable(bytes));
    std::memcpy(host_weights_->data(), shape.class_weights.data(), static_cast<size_t>(bytes));
    return device.stream().CopyFromHost(weights_->data(), host_weights_->data(), bytes);
  }

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
                                     .result = result.f64(),
                                     .label_smoothing = label_smoothing_,
                                     .class_weights = weights(),
                                     .smoothed_total = smoothed_total_};
    return CudaStatus(launch_(AsCuda(stream).compute(), type_, arguments), "LaunchLoss");
  }

 private:
  const float* weights() const {
    return weights_.has_value() ? reinterpret_cast<const float*>(weights_->data()) : nullptr;
  }

  LaunchLossFunction* const launch_;
  const LossShape shape_;
  const ElementType type_;
  float label_smoothing_ = 0.0F;
  float smoothed_total_ = 0.0F;
  std::optional<HostBuffer> host_weights_;  // the copy may still be reading it
  std::optional<Buffer> weights_;
};

absl::StatusOr<std::unique_ptr<CudaLoss>> MakeLoss(LaunchLossFunction* launch,
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
  return std::make_unique<CudaLoss>(launch, shape, ElementTypeOf(type));
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateLoss(LaunchLossFunction* launch,
                                                   const LossShape& shape, DType type) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaLoss> loss, MakeLoss(launch, shape, type));
  return std::unique_ptr<LossOp>(std::move(loss));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const SoftmaxCrossEntropyShape& shape,
                                                     Device& device) {
  RETURN_IF_ERROR(CheckClassWeights(shape));
  if (shape.is_plain()) {
    return CreateLoss(LaunchSoftmaxCrossEntropy, shape, device.activation_type());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<CudaLoss> loss,
                   MakeLoss(LaunchWeightedCrossEntropy, shape, device.activation_type()));
  RETURN_IF_ERROR(loss->Weigh(shape, device));
  return std::unique_ptr<LossOp>(std::move(loss));
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
