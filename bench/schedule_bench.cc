// Every schedule on two CPU devices of one core each: the measured step, the step that the
// simulator predicts from the costs measured in the same run, and whether both put the schedules in
// the same order. The network is the default one, narrower. Prints a table; takes about two minutes
// on two cores and 4 GB of memory.
//   build/release/bench/schedule_bench
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/stagecoach.h"
#include "schedule/generators.h"
#include "schedule/simulate.h"

namespace stagecoach::bench {
namespace {

constexpr int64_t kFeatures = 784, kClasses = 10, kWidth = 1536, kRows = 64;
constexpr int kLayers = 18, kDevices = 2, kMicroBatches = 8;
constexpr int kWarmUpSteps = 2;

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

struct Row {
  std::string schedule;
  double measured_ms = 0.0;  // median
  double simulated_ms = 0.0;
  double busy = 0.0;  // share of the measured step in which devices computed
  double peak_mb = 0.0;
};

// One schedule in training.
class Contestant {
 public:
  Contestant(const engine::Model& model, std::string schedule)
      : schedule_(std::move(schedule)),
        data_(Value(
            engine::LoadData({.spec = absl::StrFormat("synthetic:%dx%dx%d", kMicroBatches * kRows,
                                                      kFeatures, kClasses)}))),
        trainer_(Value(engine::Trainer::Create(
            Value(PrepareRun(model, {.devices = kDevices,
                                     .schedule = schedule_,
                                     .micro_batches = kMicroBatches,
                                     .micro_batch_rows = kRows})),
            {.learning_rate = engine::LearningRate::Constant(1e-5F), .trace = true}))),
        rows_(static_cast<size_t>(kMicroBatches * kRows)) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  void Step(bool counts) {
    STAGECOACH_CHECK_OK(trainer_->Step(*data_.train, rows_));
    if (counts) steps_ns_.push_back(Value(trainer_->LastTrace()).step_ns);
  }

  Row Result() {
    const auto middle = steps_ns_.begin() + static_cast<ptrdiff_t>(steps_ns_.size() / 2);
    std::nth_element(steps_ns_.begin(), middle, steps_ns_.end());
    const auto simulation = Value(schedule::Simulate(trainer_->run().lowered->training,
                                                     Value(trainer_->MeasuredCosts()),
                                                     {.sends = schedule::Sends::kRendezvous}));
    Row row = {.schedule = schedule_,
               .measured_ms = static_cast<double>(*middle) / 1e6,
               .simulated_ms = static_cast<double>(simulation.step_ns) / 1e6};
    const std::vector<engine::DeviceReport> devices = Value(trainer_->Devices());
    for (const engine::DeviceReport& device : devices) {
      row.busy += device.busy / kDevices;
      row.peak_mb = std::max(row.peak_mb, static_cast<double>(device.measured_peak_bytes) / 1e6);
    }
    return row;
  }

 private:
  const std::string schedule_;
  const engine::TrainTest data_;
  const std::unique_ptr<engine::Trainer> trainer_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> steps_ns_;
};

// Of all pairs of schedules, how many the simulation puts in the measured order.
void PrintAgreement(const std::vector<Row>& rows) {
  int pairs = 0;
  int agree = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      ++pairs;
      const bool measured = rows[i].measured_ms < rows[j].measured_ms;
      const bool simulated = rows[i].simulated_ms < rows[j].simulated_ms;
      if (measured == simulated) {
        ++agree;
        continue;
      }
      std::printf("order differs: %s and %s, measured %.2f %% apart, simulated %.2f %%\n",
                  rows[j].schedule.c_str(), rows[i].schedule.c_str(),
                  100.0 * (rows[i].measured_ms / rows[j].measured_ms - 1.0),
                  100.0 * (rows[i].simulated_ms / rows[j].simulated_ms - 1.0));
    }
  }
  std::printf("order of speed: %d of %d pairs agree\n", agree, pairs);
}

void Run() {
  const engine::Model model = Value(engine::DefaultNetwork(kFeatures, kClasses, kLayers, kWidth));
  std::printf("%-12s  %11s  %12s  %18s  %6s  %8s\n", "schedule", "measured ms", "simulated ms",
              "simulated/measured", "busy", "peak MB");
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const schedule::Generator& generator : schedule::Generators()) {
    contestants.push_back(std::make_unique<Contestant>(model, std::string(generator.name)));
  }
  // In turns, so that a machine whose speed drifts is as fast for one as for the other.
  for (int step = 0; step < kWarmUpSteps + engine::kTracedSteps; ++step) {
    for (const auto& contestant : contestants) contestant->Step(step >= kWarmUpSteps);
  }
  std::vector<Row> rows;
  for (const auto& contestant : contestants) {
    rows.push_back(contestant->Result());
    const Row& row = rows.back();
    std::printf("%-12s  %11.2f  %12.2f  %18.4f  %5.1f%%  %8.1f\n", row.schedule.c_str(),
                row.measured_ms, row.simulated_ms, row.simulated_ms / row.measured_ms,
                100.0 * row.busy, row.peak_mb);
  }
  PrintAgreement(rows);
}

}  // namespace
}  // namespace stagecoach::bench

int main() { stagecoach::bench::Run(); }
