// Data without an end: points of a square, and whether they are within a circle.
#include <cstring>
#include <iostream>
#include <random>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

absl::Status Point(int64_t i, absl::Span<const absl::Span<std::byte>> inputs,
                   absl::Span<std::byte> target) {
  std::mt19937_64 random(static_cast<uint64_t>(i));
  std::uniform_real_distribution<float> side(-1.0F, 1.0F);
  const float point[] = {side(random), side(random)};
  const int32_t label = point[0] * point[0] + point[1] * point[1] < 0.6F ? 1 : 0;
  std::memcpy(inputs[0].data(), point, sizeof(point));
  std::memcpy(target.data(), &label, sizeof(label));
  return absl::OkStatus();
}

int main() {
  const SampleSpec spec = {.inputs = {{.name = "point", .shape = Shape{2}}},
                           .target = TargetSpec::ClassLabel(2)};
  const std::shared_ptr<const Dataset> points = StreamOf(spec, Point);
  const Model model = {.input = Shape{2}, .layers = {Linear(32, Activation::kRelu), Linear(2)}};
  const auto run = PrepareRun(model, {.devices = 2, .micro_batches = 4, .micro_batch_rows = 16});
  const auto trainer = Trainer::Create(*run, {.learning_rate = LearningRate::Constant(1e-2F)});
  const auto test = Subset(points, 1000).value();
  const auto fit = Fit(**trainer, {.train = points, .test = test}, {.steps = 200});
  if (!fit.ok()) return std::cerr << fit.status() << '\n', 1;
  std::cout << "accuracy " << fit->metrics->test_accuracy << '\n';
  return fit->metrics->test_accuracy > 0.9 ? 0 : 1;
}
