#include "tools/cli/training.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/train/fit.h"
#include "tools/cli/device_choice.h"
#include "tools/cli/machine.h"
#include "tools/cli/messages.h"
#include "tools/cli/rings.h"

namespace stagecoach::tools {
namespace {

engine::LearningRate RateScheduleOf(const RunOptions& options, int64_t steps) {
  const float peak = LearningRateOf(options);
  if (options.learning_rate_schedule == "constant") {
    return engine::LearningRate::Constant(peak);
  }
  const auto warmup = static_cast<int64_t>(kWarmupShare * static_cast<double>(steps));
  return engine::LearningRate::WarmupCosine(peak, std::max<int64_t>(1, warmup), steps);
}

// What processes must have alike for their steps to be those of one run.
std::string Fingerprint(const RunOptions& options, const Run& run) {
  const auto size_of = [](const engine::Dataset& data) {
    return absl::StrCat(data.rows(), "x", data.features(), "x", data.classes());
  };
  return absl::StrCat("epochs: ", options.epochs, "\ndata to train on: ", size_of(*run.data.train),
                      "\ndata to test: ", size_of(*run.data.test), "\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<engine::Trainer>> MakeTrainer(const RunOptions& options,
                                                             const Run& run,
                                                             const Meeting& meeting) {
  const engine::PreparedRun& prepared = run.prepared;
  const int64_t steps = options.epochs * StepsPerEpoch(*run.data.train, prepared.plan);
  return OnDevices(
      prepared.device,
      engine::Trainer::Create(prepared, {.optimizer = prepared.optimizer,
                                         .learning_rate = RateScheduleOf(options, steps),
                                         .seed = options.seed,
                                         .device = prepared.device,
                                         .exchange = ExchangeOf(options.device, prepared.device),
                                         .rendezvous = meeting.rendezvous.get(),
                                         .fingerprint = Fingerprint(options, run),
                                         .deadline = LongestWait(options),
                                         .replica_check_steps = options.replica_check_steps,
                                         .rings = FindRings(meeting.launch),
                                         .on_slow_rank = PrintNotice,
                                         .trace = WantsTraces(options)}));
}

absl::Status CheckHasMemoryFor(const engine::PreparedRun& run, const MemoryUse& use) {
  if (run.device.kind != engine::DeviceKind::kCpu) return absl::OkStatus();
  int64_t needed_bytes = 0;
  for (const partition::RankReport& rank : run.report.ranks) {
    needed_bytes += run.plan.replicas() * rank.peak_bytes();
  }
  for (const partition::StageReport& stage : run.report.stages) {
    const int64_t trained_bytes = stage.memory.parameter_bytes + stage.memory.optimizer_bytes;
    if (use.saves) needed_bytes += trained_bytes;
    if (use.keeps) needed_bytes += run.plan.replicas() * trained_bytes;
  }
  return CheckHasMemory(needed_bytes + use.output_bytes);
}

}  // namespace stagecoach::tools
