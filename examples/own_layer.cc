// A user-defined layer: y = scale * x, with one learnable factor per feature. Backward has two
// parts, so that every schedule can place them: dx = scale * dy for the previous stage, and dscale
// = sum over rows of x * dy for the optimizer.
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

class Scale final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    rows_ = context.rows;
    features_ = context.input.elements();
    LayerSpec spec;
    spec.description = "scale";
    spec.output = context.input;
    spec.parameters = {{"scale", Shape{features_}, Init::Constant(1.0F)}};
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;  // BackwardWeight reads dy
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return ForEach([&](int64_t i, int64_t f) {
      args.y.f32()[i] = args.parameters[0].f32()[f] * args.x.f32()[i];
    });
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();  // the first layer of the network
    return ForEach([&](int64_t i, int64_t f) {
      args.dx.f32()[i] = args.parameters[0].f32()[f] * args.dy.f32()[i];
    });
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    float* const dscale = args.gradients[0].f32();
    if (!args.accumulate) std::fill_n(dscale, features_, 0.0F);
    return ForEach([&](int64_t i, int64_t f) { dscale[f] += args.x.f32()[i] * args.dy.f32()[i]; });
  }

 private:
  template <typename F>
  absl::Status ForEach(F function) const {
    for (int64_t i = 0; i < rows_ * features_; ++i) function(i, i % features_);
    return absl::OkStatus();
  }

  int64_t rows_ = 0, features_ = 0;
};

int main() {
  // CheckLayer finds mistakes in a layer before a model is trained with it.
  const absl::Status checked = CheckLayer(LayerOf<Scale>(), {.input = Shape{32}});
  if (!checked.ok()) return std::cerr << checked << '\n', 1;
  const auto data = LoadData({.spec = "synthetic:2000x32x4", .seed = 7});
  if (!data.ok()) return std::cerr << data.status() << '\n', 1;
  const Model model = {
      .input = Shape{32},
      .layers = {LayerOf<Scale>(), Linear(64, Activation::kGelu), LayerOf<Scale>(), Linear(4)}};
  const auto run = PrepareRun(model, {.devices = 2, .micro_batches = 4, .micro_batch_rows = 8});
  if (!run.ok()) return std::cerr << run.status() << '\n', 1;
  auto trainer = Trainer::Create(*run, {});
  if (!trainer.ok()) return std::cerr << trainer.status() << '\n', 1;
  const auto result = Fit(**trainer, *data, {.epochs = 3});
  const auto scale = (*trainer)->Parameter("layer 0: scale");
  if (!result.ok() || !scale.ok()) return std::cerr << result.status() << scale.status() << '\n', 1;
  std::cout << "after " << result->steps << " steps the first factors are " << (*scale)[0] << ", "
            << (*scale)[1] << '\n';
  if ((*scale)[0] == 1.0F) return std::cerr << "it has not learned\n", 1;
}
