#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_LOOKUP_LAYER_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_LOOKUP_LAYER_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "engine/model/layer.h"

namespace stagecoach::engine {

// y[r, t] = table[x[r, t]], on CPU devices.
class LookupLayer final : public Layer {
 public:
  explicit LookupLayer(int64_t width) : width_(width) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ids_ = context.rows * context.input.elements();
    vocabulary_ = context.vocabulary;
    LayerSpec spec;
    spec.description = "lookup";
    spec.takes_ids = true;
    spec.output = Shape{context.input.dim(0), width_};
    spec.parameters = {{"table", Shape{vocabulary_, width_}, Init::Normal(0.0F, 0.5F), true}};
    spec.memory.input_last_use = LastUse::kBackwardWeight;
    spec.memory.output_last_use = LastUse::kForward;
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    for (int64_t i = 0; i < ids_; ++i) {
      ASSIGN_OR_RETURN(const int64_t id, IdAt(args.x, i));
      std::copy_n(args.parameters[0].f32() + id * width_, width_, args.y.f32() + i * width_);
    }
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : absl::InternalError("ids have no gradient");
  }
  absl::Status BackwardWeight(const LayerArgs& args) override {
    float* const gradient = args.gradients[0].f32();
    if (!args.accumulate) std::fill_n(gradient, vocabulary_ * width_, 0.0F);
    for (int64_t i = 0; i < ids_; ++i) {
      ASSIGN_OR_RETURN(const int64_t id, IdAt(args.x, i));
      for (int64_t k = 0; k < width_; ++k) {
        gradient[id * width_ + k] += args.dy.f32()[i * width_ + k];
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<int64_t> IdAt(const Tensor& x, int64_t i) const {
    if (x.dtype != kernels::DType::kInt32) return absl::InternalError("x is not int32");
    const int64_t id = x.i32()[i];
    if (id < 0 || id >= vocabulary_) return absl::InternalError("an id out of range");
    return id;
  }

  const int64_t width_;
  int64_t ids_ = 0, vocabulary_ = 0;
};

inline LayerFactory Lookup(int64_t width) { return LayerOf<LookupLayer>(width); }

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_LOOKUP_LAYER_H_
