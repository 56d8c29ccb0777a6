// The example of a first course on data parallelism: two replicas of a small network, batches of
// 100 samples, five epochs. Run directly, the replicas are threads of one process (DataParallel);
// run as
//   stagecoach launch --processes 2 -- data_parallel
// each is a process (DistributedDataParallel). The figures are the same, to the last bit.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "engine/stagecoach.h"

using namespace stagecoach::engine;

constexpr int64_t kBatchRows = 100;

// Counts the samples whose largest output is at their label, from the outputs themselves.
int64_t CountCorrect(const Dataset& data, const std::vector<float>& outputs) {
  const auto classes = static_cast<int64_t>(outputs.size()) / data.rows();
  int64_t correct = 0;
  for (int64_t row = 0; row < data.rows(); ++row) {
    const auto first = outputs.begin() + row * classes;
    correct += std::max_element(first, first + classes) - first == data.label(row) ? 1 : 0;
  }
  return correct;
}

// `rendezvous` connects to the process of the other replica; null if both replicas are in this
// process.
absl::Status Run(const std::string& spec, Rendezvous* rendezvous) {
  const auto data = LoadData({.spec = spec, .seed = 7});
  if (!data.ok()) return data.status();
  const Model model = {.input = Shape{data->train->features()},
                       .layers = {Linear(64, Activation::kRelu), Linear(data->train->classes())}};
  const TrainerOptions options = {.learning_rate = LearningRate::Constant(2e-3F)};
  const auto trainer = rendezvous == nullptr
                           ? DataParallel(model, /*replicas=*/2, kBatchRows, options)
                           : DistributedDataParallel(model, *rendezvous, kBatchRows, options);
  if (!trainer.ok()) return trainer.status();

  const bool reports = rendezvous == nullptr || rendezvous->rank() == 0;
  std::vector<EpochResult> epochs;
  const auto report = [&](const EpochResult& epoch) {
    epochs.push_back(epoch);
    if (!reports) return;
    std::printf("%5d  %6.4f  %7.2f %%  %6.2f %%\n", epoch.epoch, epoch.loss,
                100 * epoch.train_accuracy, 100 * epoch.test_accuracy);
  };
  if (reports) std::printf("%s\nepoch    loss      train      test\n", spec.c_str());
  const auto fit = Fit(**trainer, *data, {.epochs = 5, .on_epoch = report});
  if (!fit.ok()) return fit.status();

  // The outputs of every sample, in order, whichever replica computed them.
  const auto outputs = (*trainer)->Predict(*data->test);
  if (!outputs.ok()) return outputs.status();
  const int64_t correct = CountCorrect(*data->test, *outputs);
  if (reports) {
    std::printf("%zu outputs gathered, %ld of %ld rows are right; step losses %s\n\n",
                outputs->size(), correct, data->test->rows(), fit->step_losses_hash.c_str());
  }
  for (size_t i = 1; i < epochs.size(); ++i) {
    if (epochs[i].loss >= epochs[i - 1].loss ||
        epochs[i].train_accuracy <= epochs[i - 1].train_accuracy) {
      return absl::InternalError("an epoch has not improved it");
    }
  }
  const auto agrees = (*trainer)->Evaluate(*data->test);
  if (!agrees.ok()) return agrees.status();
  return agrees->correct == correct ? absl::OkStatus() : absl::InternalError("wrong outputs");
}

int main() {
  std::unique_ptr<Rendezvous> rendezvous;
  const auto launch = FindLaunch();
  if (!launch.ok()) return std::cerr << launch.status() << '\n', 2;
  if (launch->has_value()) {
    auto met = ConnectRendezvous(**launch, absl::Minutes(1));
    if (!met.ok()) return std::cerr << met.status() << '\n', 1;
    rendezvous = *std::move(met);
  }
  for (const char* spec : {"synthetic:1000x10x2", "synthetic:10000x20x10"}) {
    const absl::Status done = Run(spec, rendezvous.get());
    if (!done.ok()) return std::cerr << done << '\n', 1;
  }
}
