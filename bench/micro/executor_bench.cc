// Measures what the executor itself takes for one action: everything between the layers' work and
// the waits for other ranks. Layers are tiny, so that a step mostly consists of that. Prints a
// table in a few seconds.
//   build/release/bench/executor_bench
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/diagnosis/flight_recorder.h"
#include "engine/stagecoach.h"

namespace stagecoach::bench {
namespace {

constexpr int64_t kFeatures = 4, kClasses = 2;
constexpr int kSteps = 200;

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

// Returns the overhead of one rank per action: from when an action stops occupying it until it
// reaches the next one, including the posting of messages.
double OwnNsPerAction(const std::vector<schedule::TimedAction>& list) {
  int64_t own_ns = 0;
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const schedule::TimedAction& timed = list[i];
    const bool is_transfer = schedule::IsTransfer(timed.action.op);
    own_ns += list[i + 1].reached_ns - (is_transfer ? timed.start_ns : timed.end_ns);
  }
  return static_cast<double>(own_ns) / static_cast<double>(list.size());
}

void Measure(const std::string& schedule, int devices, int micro_batches) {
  engine::Model model{.input = engine::Shape{kFeatures}};
  for (int layer = 0; layer < 8; ++layer) model.layers.push_back(engine::Linear(kClasses));
  const auto run = Value(PrepareRun(model, {.devices = devices,
                                            .schedule = schedule,
                                            .micro_batches = micro_batches,
                                            .micro_batch_rows = 1}));
  const auto data = Value(engine::LoadData(
      {.spec = absl::StrFormat("synthetic:%dx%dx%d", micro_batches, kFeatures, kClasses)}));
  const auto trainer = Value(engine::Trainer::Create(run, {.trace = true}));
  std::vector<int64_t> rows(static_cast<size_t>(micro_batches));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<double> own_ns;
  size_t actions = 0;
  for (int step = 0; step < kSteps; ++step) {
    STAGECOACH_CHECK_OK(trainer->Step(*data.train, rows));
    double slowest_ns = 0.0;
    for (const auto& list : Value(trainer->LastTrace()).actions) {
      slowest_ns = std::max(slowest_ns, OwnNsPerAction(list));
      actions = list.size();
    }
    own_ns.push_back(slowest_ns);
  }
  std::nth_element(own_ns.begin(), own_ns.begin() + kSteps / 2, own_ns.end());
  std::printf("%-12s  %7d  %13d  %7zu  %13.0f  target <= 3000\n", schedule.c_str(), devices,
              micro_batches, actions, own_ns[kSteps / 2]);
  std::fflush(stdout);
}

void Run() {
  std::printf("%-12s  %7s  %13s  %7s  %13s\n", "schedule", "devices", "micro-batches", "actions",
              "ns per action");
  for (const int devices : {1, 2}) {
    for (const int micro_batches : {16, 256}) {
      for (const char* schedule : {"gpipe", "1f1b", "zb-v"}) {
        Measure(schedule, devices, micro_batches);
      }
    }
  }
}

// Measures what recording an action with its times takes, which is part of the figures above.
void MeasureRing() {
  constexpr int kRuns = 1000, kActions = 1000;
  const auto ring = Value(engine::FlightRecorder::Create({}, ""));
  const engine::FlightAction action = {.awaited = engine::Awaited::kMessage};
  const auto start = std::chrono::steady_clock::now();
  for (int run = 0; run < kRuns; ++run) {
    ring->BeginRun(run, /*trains=*/true);
    for (int i = 0; i < kActions; ++i) {
      ring->Begin(action);
      ring->Start();
    }
    ring->EndRun();
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  std::printf("ring: %.0f ns per action that waits  target <= 100\n",
              took.count() / (kRuns * kActions));
}

}  // namespace
}  // namespace stagecoach::bench

int main() {
  stagecoach::bench::Run();
  stagecoach::bench::MeasureRing();
}
