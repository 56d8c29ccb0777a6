// A user-defined loss: the hinge loss of a classifier, which requires that the output at the label
// exceed every other by 1 (Crammer & Singer 2001): max(0, 1 + max over c != label of y[c] -
// y[label]). The program fails if the model does not improve when trained with it.
#include <algorithm>
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

class Hinge final : public Loss {
 public:
  absl::StatusOr<LossSpec> Prepare(const LossContext& context) override {
    rows_ = context.rows;
    classes_ = context.output.elements();
    if (classes_ < 2) return absl::InvalidArgumentError("hinge: takes at least two outputs");
    return LossSpec{.description = "hinge", .target = TargetSpec::ClassLabel(classes_)};
  }

  absl::Status Compute(const LossArgs& args) override {
    const bool wants_gradient = !args.dy.empty();
    if (wants_gradient) std::fill_n(args.dy.f32(), rows_ * classes_, 0.0F);
    double sum = 0.0, right = 0.0;
    for (int64_t row = 0; row < args.terms->valid_samples; ++row) {
      const float* const y = args.y.f32() + row * classes_;
      const int64_t label = args.targets.i32()[row];
      int64_t rival = label == 0 ? 1 : 0;
      for (int64_t c = 0; c < classes_; ++c) {
        if (c != label && y[c] > y[rival]) rival = c;
      }
      if (y[label] > y[rival]) ++right;
      const double loss = 1.0 + static_cast<double>(y[rival]) - static_cast<double>(y[label]);
      if (loss <= 0.0) continue;
      sum += loss;
      if (!wants_gradient) continue;
      args.dy.f32()[row * classes_ + rival] = args.terms->scale;
      args.dy.f32()[row * classes_ + label] = -args.terms->scale;
    }
    args.result.f64()[0] = sum;
    args.result.f64()[1] = right;
    return absl::OkStatus();
  }

 private:
  int64_t rows_ = 0, classes_ = 0;
};

int main() {
  const auto data = LoadData({.spec = "synthetic:2000x32x4", .seed = 7});
  if (!data.ok()) return std::cerr << data.status() << '\n', 1;
  const Model model = {.input = Shape{32},
                       .layers = {Linear(64, Activation::kGelu), Linear(4)},
                       .loss = LossOf<Hinge>()};
  const auto run = PrepareRun(model, {.devices = 2, .micro_batches = 4, .micro_batch_rows = 8});
  if (!run.ok()) return std::cerr << run.status() << '\n', 1;
  auto trainer = Trainer::Create(*run, {});
  if (!trainer.ok()) return std::cerr << trainer.status() << '\n', 1;
  const auto before = (*trainer)->Evaluate(*data->test);
  if (!before.ok()) return std::cerr << before.status() << '\n', 1;
  const auto result = Fit(**trainer, *data, {.epochs = 5});
  const auto after = (*trainer)->Evaluate(*data->test);
  if (!result.ok() || !after.ok()) return std::cerr << result.status() << after.status() << '\n', 1;
  std::cout << "the hinge loss went from " << before->loss << " to " << after->loss
            << ", the accuracy from " << before->accuracy() << " to " << after->accuracy() << '\n';
  const bool learned = after->loss < 0.75 * before->loss && after->accuracy() > before->accuracy();
  if (!learned) return std::cerr << "it has not learned\n", 1;
}
