#include "kernels/ops/image_norm.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/images/image_norm_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

class CudaImageNorm final : public ImageNormOp {
 public:
  CudaImageNorm(const ImageNormShape& shape, ElementType type, bool starts_early)
      : shape_(shape), type_(type), starts_early_(starts_early) {}

  int64_t workspace_bytes() const override { return ImageNormWorkspaceBytes(type_, extents()); }

  absl::Status Forward(Stream& stream, const ImageNormTensors& tensors, const ImageNormTail& tail,
                       std::byte* workspace) override {
    RETURN_IF_ERROR(Statistics(stream, tensors, workspace));
    ImageNormArguments arguments = ArgumentsOf(tensors, tail);
    arguments.starts_early = starts_early_;
    return CudaStatus(LaunchImageNormApply(AsCuda(stream).compute(), type_, arguments),
                      "LaunchImageNormApply");
  }

  bool norms_addend() const override { return true; }

  absl::Status Statistics(Stream& stream, const ImageNormTensors& tensors,
                          std::byte* workspace) override {
    ImageNormArguments arguments = ArgumentsOf(tensors, {});
    arguments.workspace = reinterpret_cast<float*>(workspace);
    arguments.starts_early = starts_early_;
    return CudaStatus(LaunchImageNormStatistics(AsCuda(stream).compute(), type_, arguments),
                      "LaunchImageNormStatistics");
  }

  absl::Status Apply(Stream& stream, const ImageNormTensors& tensors,
                     const ImageNormTail& tail) override {
    return CudaStatus(
        LaunchImageNormApply(AsCuda(stream).compute(), type_, ArgumentsOf(tensors, tail)),
        "LaunchImageNormApply");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                             const ImageNormTailGradient& tail, const Tensor& dx,
                             std::byte* workspace) override {
    return RunBackward(stream, dy, tensors, tail, dx, {}, {}, {}, false, workspace);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                              const ImageNormTailGradient& tail, const Tensor& dgamma,
                              const Tensor& dbeta, bool accumulate, std::byte* workspace) override {
    return RunBackward(stream, dy, tensors, {.has_relu = tail.has_relu, .y = tail.y}, {}, dgamma,
                       dbeta, {}, accumulate, workspace);
  }

  bool adds_to_dy() const override { return true; }

  bool shares_backward() const override { return true; }

  absl::Status Backward(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                        const ImageNormTailGradient& tail, const Tensor& dx, const Tensor& dgamma,
                        const Tensor& dbeta, bool accumulate, std::byte* workspace) override {
    return RunBackward(stream, dy, tensors, tail, dx, dgamma, dbeta, {}, accumulate, workspace);
  }

  absl::Status BackwardAndCollect(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                                  const ImageNormTailGradient& tail, const Tensor& dx,
                                  const Tensor& dgamma, const Tensor& dbeta,
                                  const ImageNormAverages& to, bool accumulate,
                                  std::byte* workspace) override {
    if (shape_.groups != 0) {
      return ImageNormOp::BackwardAndCollect(stream, dy, tensors, tail, dx, dgamma, dbeta, to,
                                             accumulate, workspace);
    }
    ImageNormTailGradient passed = tail;
    if (dx.empty()) passed.dz = {};
    return RunBackward(stream, dy, tensors, passed, dx, dgamma, dbeta, to, accumulate, workspace);
  }

  absl::Status Collect(Stream& stream, const Tensor& mean, const Tensor& variance,
                       const Tensor& to_mean, const Tensor& to_variance, bool accumulate) override {
    const ImageNormCollectArguments arguments = {.sets = shape_.sets(),
                                                 .unbiased = unbiased(),
                                                 .mean = mean.f32(),
                                                 .variance = variance.f32(),
                                                 .to_mean = to_mean.f32(),
                                                 .to_variance = to_variance.f32(),
                                                 .accumulate = accumulate};
    return CudaStatus(LaunchImageNormCollect(AsCuda(stream).compute(), arguments),
                      "LaunchImageNormCollect");
  }

 private:
  ImageNormExtents extents() const {
    return {shape_.samples, shape_.channels, shape_.area, shape_.groups};
  }
  float unbiased() const {
    const auto size = static_cast<float>(shape_.set_size());
    return size / (size - 1.0F);
  }

  absl::Status RunBackward(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                           const ImageNormTailGradient& tail, const Tensor& dx,
                           const Tensor& dgamma, const Tensor& dbeta, const ImageNormAverages& to,
                           bool accumulate, std::byte* workspace) {
    const ImageNormBackwardArguments arguments = {.extents = extents(),
                                                  .epsilon = shape_.epsilon,
                                                  .dy = dy.data,
                                                  .x = tensors.x.data,
                                                  .gamma = tensors.gamma.data,
                                                  .beta = tensors.beta.data,
                                                  .mean = tensors.mean.f32(),
                                                  .variance = tensors.variance.f32(),
                                                  .has_relu = tail.has_relu,
                                                  .dy_addend = tail.dy_addend.data,
                                                  .y = tail.y.data,
                                                  .dz = tail.dz.data,
                                                  .dx = dx.data,
                                                  .dgamma = dgamma.f32(),
                                                  .dbeta = dbeta.f32(),
                                                  .accumulate = accumulate,
                                                  .unbiased = to.mean.empty() ? 1.0F : unbiased(),
                                                  .to_mean = to.mean.f32(),
                                                  .to_variance = to.variance.f32(),
                                                  .workspace = reinterpret_cast<float*>(workspace),
                                                  .starts_early = starts_early_};
    return CudaStatus(LaunchImageNormBackward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchImageNormBackward");
  }

  ImageNormArguments ArgumentsOf(const ImageNormTensors& tensors, const ImageNormTail& tail) const {
    return {.extents = extents(),
            .epsilon = shape_.epsilon,
            .x = tensors.x.data,
            .gamma = tensors.gamma.data,
            .beta = tensors.beta.data,
            .mean = tensors.mean.f32(),
            .variance = tensors.variance.f32(),
            .addend = tail.addend.data,
            .of_addend = {.epsilon = tail.addend_norm.epsilon,
                          .gamma = tail.addend_norm.gamma.data,
                          .beta = tail.addend_norm.beta.data,
                          .mean = tail.addend_norm.mean.f32(),
                          .variance = tail.addend_norm.variance.f32()},
            .has_relu = tail.has_relu,
            .y = tensors.y.data};
  }

  const ImageNormShape shape_;
  const ElementType type_;
  const bool starts_early_;
};

// Checks also the products that count rows and sets.
bool AreImageNormExtents(const ImageNormShape& shape) {
  return IsCudaExtent(shape.samples) && IsCudaExtent(shape.channels) && IsCudaExtent(shape.area) &&
         IsCudaExtent(shape.samples * shape.channels) && IsCudaExtent(shape.samples * shape.area) &&
         shape.groups >= 0 && (shape.groups == 0 || shape.channels % shape.groups == 0) &&
         shape.epsilon > 0.0F;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCuda(const ImageNormShape& shape,
                                                          Device& device) {
  if (!AreImageNormExtents(shape)) {
    return ImageNormRefusal(shape, kMaxCudaExtent);
  }
  return std::unique_ptr<ImageNormOp>(std::make_unique<CudaImageNorm>(
      shape, ElementTypeOf(device.activation_type()), TunerOf(device).starts_kernels_early()));
}

}  // namespace stagecoach::kernels
