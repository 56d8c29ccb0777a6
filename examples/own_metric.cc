// A metric of one's own, which evaluations compute from the model's outputs, and by which the run
// ends when it no longer improves: the mean margin of the label's output over the largest other
// one.
#include <algorithm>
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

double Margin(const Dataset& data, int64_t row, absl::Span<const float> outputs) {
  std::vector<float> others(outputs.begin(), outputs.end());
  others.erase(others.begin() + data.label(row));
  return outputs[data.label(row)] - *std::max_element(others.begin(), others.end());
}

int main() {
  RunConfig config;
  config.data = "synthetic:2000x32x4";
  config.layers = 4;
  config.stages = 2;
  config.epochs = 20;
  config.own_metrics = {MeanOfRows("test_margin", Margin)};
  config.best_by = "test_margin";
  config.patience = 2;
  const auto run = Train(config);
  if (!run.ok()) return std::cerr << run.status() << '\n', 1;
  std::cout << run->fit.epochs << " epochs, the best margin is " << *run->fit.best << '\n';
  return *run->fit.best > 0.0 ? 0 : 1;
}
