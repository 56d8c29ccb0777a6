// Data without an end: a generator makes points in a square, and whether each is within a circle.
// Point i depends on i alone, so that a run has the same bits over one device and over two.
#include <cstring>
#include <iostream>
#include <random>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

class Circle final : public SampleGenerator {
 public:
  SampleSpec spec() const override {
    return {.inputs = {{.name = "point", .shape = Shape{2}}}, .target = TargetSpec::ClassLabel(2)};
  }
  absl::Status Seek(int64_t position) override {
    next_ = static_cast<uint64_t>(position);
    return absl::OkStatus();
  }
  absl::Status Next(absl::Span<const absl::Span<std::byte>> inputs,
                    absl::Span<std::byte> target) override {
    std::mt19937_64 random(next_++);  // of this point alone
    std::uniform_real_distribution<float> side(-1.0F, 1.0F);
    const float point[] = {side(random), side(random)};
    const int32_t label = point[0] * point[0] + point[1] * point[1] < 0.6F ? 1 : 0;
    std::memcpy(inputs[0].data(), point, sizeof(point));
    std::memcpy(target.data(), &label, sizeof(label));
    return absl::OkStatus();
  }

 private:
  uint64_t next_ = 0;
};

int main() {
  const Model model = {.input = Shape{2}, .layers = {Linear(32, Activation::kRelu), Linear(2)}};
  const std::shared_ptr<const Dataset> points = StreamOf(std::make_unique<Circle>());
  const std::shared_ptr<const Dataset> test = Subset(points, 1000).value();
  std::string hashes[2];
  for (const int devices : {1, 2}) {
    const auto run =
        PrepareRun(model, {.devices = devices, .micro_batches = 4, .micro_batch_rows = 16});
    auto trainer = Trainer::Create(*run, {.learning_rate = LearningRate::Constant(1e-2F)});
    if (!trainer.ok()) return std::cerr << trainer.status() << '\n', 1;
    const auto fit = Fit(**trainer, {.train = points, .test = test}, {.steps = 200});
    if (!fit.ok()) return std::cerr << fit.status() << '\n', 1;
    std::cout << devices << " devices: accuracy " << fit->metrics->test_accuracy << '\n';
    hashes[devices - 1] = (*trainer)->ParametersHash().value();
  }
  return hashes[0] == hashes[1] ? 0 : 1;
}
