// A metric of one's own, which evaluations compute from the model's outputs, and by which the run
// ends when it no longer improves.
#include <algorithm>
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

// The mean margin of the label's output over the largest other one. Larger is better.
class Margin final : public EvaluationMetric {
 public:
  std::string name() const override { return "test_margin"; }
  void Begin() override { sum_ = 0.0, rows_ = 0; }
  absl::Status Add(const Dataset& data, const Outputs& outputs) override {
    const auto width = static_cast<int64_t>(outputs.values.size()) / outputs.rows;
    for (int64_t i = 0; i < outputs.rows; ++i, ++rows_) {
      const float* const y = outputs.values.data() + i * width;
      const int32_t label = data.label(outputs.first_row + i);
      float rival = -1e30F;
      for (int64_t c = 0; c < width; ++c) {
        if (c != label) rival = std::max(rival, y[c]);
      }
      sum_ += static_cast<double>(y[label]) - static_cast<double>(rival);
    }
    return absl::OkStatus();
  }
  double Value() const override { return sum_ / static_cast<double>(rows_); }

 private:
  double sum_ = 0.0;
  int64_t rows_ = 0;
};

int main() {
  RunConfig config;
  config.data = "synthetic:2000x32x4";
  config.layers = 4;
  config.stages = 2;
  config.epochs = 20;
  config.own_metrics = {std::make_shared<Margin>()};
  config.best_by = "test_margin";
  config.patience = 2;
  const auto run = Train(config);
  if (!run.ok()) return std::cerr << run.status() << '\n', 1;
  const FitResult& fit = run->fit;
  std::cout << fit.epochs << " epochs, the best margin is " << *fit.best << '\n';
  return *fit.best > 0.0 ? 0 : 1;
}
