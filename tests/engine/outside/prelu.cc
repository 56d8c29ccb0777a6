#include "tests/engine/outside/prelu.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outside {
namespace {

using stagecoach::engine::Init;
using stagecoach::engine::Layer;
using stagecoach::engine::LayerArgs;
using stagecoach::engine::LayerContext;
using stagecoach::engine::LayerSpec;
using stagecoach::engine::Shape;
using stagecoach::schedule::LastUse;

absl::Status StatusOf(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("prelu: ", cudaGetErrorString(error)));
}

class PreluLayer final : public Layer {
 public:
  explicit PreluLayer(float slope) : slope_(slope) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (context.device.activation_type() != stagecoach::kernels::DType::kFloat32) {
      return absl::InvalidArgumentError("prelu: computes in float32 only");
    }
    rows_ = context.rows;
    features_ = context.input.elements();
    LayerSpec spec;
    spec.description = "prelu";
    spec.output = context.input;
    spec.parameters = {{"slope", Shape{features_}, Init::Constant(slope_), /*decays=*/false}};
    spec.memory.input_last_use = LastUse::kBackwardWeight;
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    const float* const slope = args.parameters[0].f32();
    if (void* const stream = args.stream.native_handle()) {
      return StatusOf(
          LaunchPreluForward(stream, rows_, features_, args.x.f32(), slope, args.y.f32()));
    }
    for (int64_t i = 0; i < rows_ * features_; ++i) {
      const float x = args.x.f32()[i];
      args.y.f32()[i] = x > 0.0F ? x : slope[i % features_] * x;
    }
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    const float* const slope = args.parameters[0].f32();
    if (void* const stream = args.stream.native_handle()) {
      return StatusOf(LaunchPreluBackwardInput(stream, rows_, features_, args.x.f32(), slope,
                                               args.dy.f32(), args.dx.f32()));
    }
    for (int64_t i = 0; i < rows_ * features_; ++i) {
      const float dy = args.dy.f32()[i];
      args.dx.f32()[i] = args.x.f32()[i] > 0.0F ? dy : slope[i % features_] * dy;
    }
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    float* const dslope = args.gradients[0].f32();
    if (void* const stream = args.stream.native_handle()) {
      return StatusOf(LaunchPreluBackwardWeight(stream, rows_, features_, args.x.f32(),
                                                args.dy.f32(), args.accumulate, dslope));
    }
    for (int64_t f = 0; f < features_; ++f) {
      float sum = args.accumulate ? dslope[f] : 0.0F;
      for (int64_t i = f; i < rows_ * features_; i += features_) {
        if (args.x.f32()[i] <= 0.0F) sum += args.dy.f32()[i] * args.x.f32()[i];
      }
      dslope[f] = sum;
    }
    return absl::OkStatus();
  }

 private:
  const float slope_;
  int64_t rows_ = 0, features_ = 0;
};

}  // namespace

stagecoach::engine::LayerFactory Prelu(float slope) {
  return stagecoach::engine::LayerOf<PreluLayer>(slope);
}

}  // namespace outside
