// What the command line does, in a program: train a model over two devices and save it, then
// predict with what was saved, over as few devices as suffice.
#include <filesystem>
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

class Progress final : public TrainingObserver {
  void Epoch(const EpochResult& result) override {
    std::cout << "epoch " << result.epoch << "  loss " << result.loss << "  test accuracy "
              << result.test_accuracy << '\n';
  }
};

int main() {
  RunConfig config;
  config.data = "synthetic:4000x100x10";
  config.layers = 4;
  config.width = 64;
  config.stages = 2;
  config.batch = 32;
  config.epochs = 3;
  config.checkpoints = "session_checkpoints";
  config.notices.on_notice = [](const std::string& line) { std::cerr << line << '\n'; };
  std::filesystem::remove_all(config.checkpoints);

  Progress progress;
  const auto trained = Train(config, {.observer = &progress});
  if (!trained.ok()) return std::cerr << trained.status() << '\n', 1;

  config.stages.reset();
  const auto predicted = Predict({.run = config, .checkpoint = config.checkpoints});
  if (!predicted.ok()) return std::cerr << predicted.status() << '\n', 1;
  std::cout << predicted->evaluation.correct << " of " << predicted->evaluation.rows
            << " rows are right\n";
}
