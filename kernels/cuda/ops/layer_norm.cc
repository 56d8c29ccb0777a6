#include "kernels/ops/layer_norm.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/layer_norm_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

class CudaLayerNorm final : public LayerNormOp {
 public:
  CudaLayerNorm(const LayerNormShape& shape, ElementType type, bool starts_early)
      : shape_(shape), type_(type), starts_early_(starts_early) {}

  int64_t workspace_bytes() const override {
    return LayerNormWorkspaceBytes(shape_.rows, shape_.features, shape_.centers);
  }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                       const Tensor& addend, const Tensor& statistics, const Tensor& y) override {
    const LayerNormForwardArguments arguments = {.rows = shape_.rows,
                                                 .features = shape_.features,
                                                 .epsilon = shape_.epsilon,
                                                 .centers = shape_.centers,
                                                 .x = x.data,
                                                 .addend = addend.data,
                                                 .gamma = gamma.data,
                                                 .beta = shape_.centers ? beta.data : nullptr,
                                                 .statistics = statistics.f32(),
                                                 .y = y.data,
                                                 .starts_early = starts_early_};
    return CudaStatus(LaunchLayerNormForward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchLayerNormForward");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& gamma,
                             const Tensor& statistics, const Tensor& addend,
                             const Tensor& dx) override {
    return Launch(stream, {.dy = dy.data,
                           .x = x.data,
                           .statistics = statistics.f32(),
                           .gamma = gamma.data,
                           .addend = addend.data,
                           .dx = dx.data});
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                              const Tensor& statistics, const Tensor& dgamma, const Tensor& dbeta,
                              bool accumulate, std::byte* workspace) override {
    return Launch(stream, {.dy = dy.data,
                           .x = x.data,
                           .statistics = statistics.f32(),
                           .dgamma = dgamma.f32(),
                           .dbeta = dbeta.f32(),
                           .accumulate = accumulate,
                           .workspace = reinterpret_cast<float*>(workspace)});
  }

  bool shares_backward() const override { return true; }

  absl::Status Backward(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& gamma,
                        const Tensor& statistics, const Tensor& addend, const Tensor& dx,
                        const Tensor& dgamma, const Tensor& dbeta, bool accumulate,
                        std::byte* workspace) override {
    return Launch(stream, {.dy = dy.data,
                           .x = x.data,
                           .statistics = statistics.f32(),
                           .gamma = gamma.data,
                           .addend = addend.data,
                           .dx = dx.data,
                           .dgamma = dgamma.f32(),
                           .dbeta = dbeta.f32(),
                           .accumulate = accumulate,
                           .workspace = reinterpret_cast<float*>(workspace)});
  }

 private:
  absl::Status Launch(Stream& stream, LayerNormBackwardArguments arguments) const {
    arguments.rows = shape_.rows;
    arguments.features = shape_.features;
    arguments.centers = shape_.centers;
    return CudaStatus(LaunchLayerNormBackward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchLayerNormBackward");
  }

  const LayerNormShape shape_;
  const ElementType type_;
  const bool starts_early_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateOnCuda(const LayerNormShape& shape,
                                                          Device& device) {
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.features) || !(shape.epsilon > 0.0F)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer norm: extents must be 1 to ", kMaxCudaExtent, " and epsilon positive: ", shape.rows,
        " rows, ", shape.features, " features, epsilon ", shape.epsilon));
  }
  return std::unique_ptr<LayerNormOp>(std::make_unique<CudaLayerNorm>(
      shape, ElementTypeOf(device.activation_type()), TunerOf(device).starts_kernels_early()));
}

}  // namespace stagecoach::kernels
