#include "engine/session/training.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/session/machine/device_choice.h"
#include "engine/session/machine/machine.h"
#include "engine/session/machine/recorders.h"
#include "engine/train/class_metrics.h"
#include "engine/train/fit.h"

namespace stagecoach::engine {
namespace {

// What processes must have alike for their steps to be those of one run.
std::string Fingerprint(const RunConfig& options, const TrainingRun& run) {
  const auto size_of = [](const Dataset& data) {
    return absl::StrCat(data.rows(), "x", data.features(), "x", data.classes());
  };
  return absl::StrCat(
      "steps: ", StepsOf(options, run),
      "\nsteps between evaluations: ", options.evaluate_every_steps,
      "\nwhen to stop: ", options.stop_when.has_value() ? options.stop_when->text : "never",
      "\npatience: ", options.patience, "\nbest by: ", options.best_by,
      "\nseed: ", options.seed,  // which decides some data: so, before them
      "\ndata to train on: ", size_of(*run.data.train), " ", run.data.fingerprint.train,
      "\ndata to test: ", size_of(*run.data.test), " ", run.data.fingerprint.test, "\n");
}

// Frozen parameters are saved as float32, whatever they are trained in. Returns how many times as
// large that is.
int64_t FrozenFloats(const PreparedRun& run) {
  return run.device.precision == Precision::kBfloat16 ? 2 : 1;
}

}  // namespace

std::vector<std::string> EvaluatedMetrics(const RunConfig& options) {
  std::vector<std::string> asked = options.evaluation_metrics;
  asked.push_back(options.best_by);
  if (options.stop_when.has_value()) asked.push_back(options.stop_when->metric);
  std::vector<std::string> metrics;
  for (const std::string& metric : MetricsOfOutputs()) {
    if (std::find(asked.begin(), asked.end(), metric) != asked.end()) metrics.push_back(metric);
  }
  return metrics;
}

int64_t StepsOf(const RunConfig& options, const TrainingRun& run) {
  return options.steps.value_or(options.epochs *
                                StepsPerEpoch(*run.data.train, run.prepared.plan()));
}

int EpochsOf(const RunConfig& options, const TrainingRun& run) {
  if (!options.steps.has_value()) return options.epochs;
  const int64_t per_epoch = StepsPerEpoch(*run.data.train, run.prepared.plan());
  return static_cast<int>(
      std::min<int64_t>((*options.steps - 1) / per_epoch + 1, std::numeric_limits<int>::max()));
}

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const RunConfig& options,
                                                     const TrainingRun& run,
                                                     const ProcessGroup& group,
                                                     const ParameterStart& start) {
  const PreparedRun& prepared = run.prepared;
  return OnDevices(
      prepared.device,
      Trainer::Create(prepared, {.optimizer = prepared.optimizer,
                                 .learning_rate = run.learning_rate,
                                 .seed = options.seed,
                                 .draws_parameters = start.is_drawn,
                                 .on_nonfinite = options.on_nonfinite.value_or(OnNonFinite::kStop),
                                 .device = prepared.device,
                                 .exchange = ExchangeOf(options.device, prepared.device),
                                 .rendezvous = group.rendezvous.get(),
                                 .fingerprint = Fingerprint(options, run) + start.fingerprint,
                                 .deadline = LongestWait(options),
                                 .replica_check_steps = options.replica_check_steps,
                                 .recorders = FindRecorders(group.launch, options.notices),
                                 .on_slow_rank = options.notices.on_notice,
                                 .trace = WantsTraces(options)}));
}

int64_t HostBytesOf(const PreparedRun& run) {
  int64_t bytes = 0;
  for (const partition::RankReport& rank : run.compiled.ranks) {
    const int64_t own = run.device.kind == DeviceKind::kCpu ? rank.peak_bytes() : 0;
    bytes += run.plan().devices_of_rank() * (own + rank.training.host_bytes());
  }
  return bytes;
}

int64_t SavedBytesOf(const PreparedRun& run) {
  int64_t bytes = 0;
  for (const partition::StageReport& stage : run.compiled.stages) {
    bytes += stage.memory.parameter_bytes + stage.memory.optimizer_bytes +
             stage.memory.host_resident_bytes + FrozenFloats(run) * stage.memory.frozen_bytes;
  }
  return bytes;
}

absl::Status CheckHasMemoryFor(const PreparedRun& run, const MemoryUse& use) {
  int64_t needed_bytes = HostBytesOf(run);
  if (run.device.kind != DeviceKind::kCpu) {
    return needed_bytes == 0 ? absl::OkStatus() : CheckHasMemory(needed_bytes);
  }
  // Values that are kept are copies of all that the stages have.
  if (use.saves) needed_bytes += SavedBytesOf(run);
  if (use.keeps) needed_bytes += run.plan().devices_of_rank() * SavedBytesOf(run);
  return CheckHasMemory(needed_bytes + use.output_bytes);
}

absl::Status CheckHasRoom(const RunConfig& options, const PreparedRun& run, const MemoryUse& use) {
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run));
  return CheckHasMemoryFor(run, use);
}

}  // namespace stagecoach::engine
