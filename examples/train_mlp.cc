// A staged model in 30 lines: define it, plan it on four devices, train it.
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

int main() {
  const auto data = LoadData({.spec = "synthetic:4000x100x10", .seed = 7});
  if (!data.ok()) return std::cerr << data.status() << '\n', 1;

  const Model model = {
      .input = Shape{100},
      .layers = {Linear(256, Activation::kRelu),
                 Residual({LayerNorm(), Linear(256, Activation::kGelu)}),
                 Residual({LayerNorm(), Linear(256, Activation::kGelu)}), Linear(10)}};

  const auto run = PrepareRun(model, {.devices = 4, .micro_batches = 4, .micro_batch_rows = 16});
  if (!run.ok()) return std::cerr << run.status() << '\n', 1;

  auto trainer = Trainer::Create(*run, {.learning_rate = LearningRate::Constant(1e-3F)});
  if (!trainer.ok()) return std::cerr << trainer.status() << '\n', 1;

  const auto result = Fit(**trainer, *data, {.epochs = 5, .on_epoch = [](const EpochResult& row) {
                                               std::cout << "epoch " << row.epoch << "  loss "
                                                         << row.loss << "  test accuracy "
                                                         << row.test_accuracy << '\n';
                                             }});
  if (!result.ok()) return std::cerr << result.status() << '\n', 1;
}
