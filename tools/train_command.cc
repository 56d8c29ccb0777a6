#include "tools/train_command.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/fit.h"
#include "engine/trainer.h"
#include "tools/exit_status.h"
#include "tools/machine.h"
#include "tools/report.h"
#include "tools/run_options.h"

namespace stagecoach::tools {
namespace {

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores it");

// From here on the first Ctrl-C (or SIGTERM) asks for a stop after the present step, and the second
// ends the process.
void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested.store(true, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

engine::LearningRate RateScheduleOf(const RunOptions& options, int64_t steps) {
  const float peak = LearningRateOf(options);
  if (options.learning_rate_schedule == "constant") {
    return engine::LearningRate::Constant(peak);
  }
  const auto warmup = static_cast<int64_t>(kWarmupShare * static_cast<double>(steps));
  return engine::LearningRate::WarmupCosine(peak, std::max<int64_t>(1, warmup), steps);
}

// What would otherwise surface late, or as the kernel's killing the process.
absl::Status CheckRun(const Run& run) {
  if (StepsPerEpoch(*run.data.train, run.plan) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the training data has ", run.data.train->rows(), " rows, less than one batch of ",
        run.plan.batch_rows(), ": use more rows or a smaller --batch"));
  }
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  int64_t needed_bytes = 0;
  for (const partition::StageReport& stage : run.stages) {
    needed_bytes += stage.memory_plan.peak_bytes();
  }
  if (memory_bytes > 0 && needed_bytes > memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all stages together need ", base::FormatBytes(needed_bytes), ", this machine has ",
        base::FormatBytes(memory_bytes), ": use a smaller model or smaller micro-batches"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> CreateTrainer(const RunOptions& options,
                                                               const Run& run) {
  const int64_t steps = options.epochs * StepsPerEpoch(*run.data.train, run.plan);
  return engine::Trainer::Create(run.model, run.plan,
                                 {.optimizer = run.optimizer,
                                  .learning_rate = RateScheduleOf(options, steps),
                                  .seed = options.seed,
                                  .threads_per_device = options.threads_per_device,
                                  .device_memory_bytes = options.device_memory_bytes,
                                  .deadline = absl::Seconds(options.deadline_seconds)});
}

absl::StatusOr<int> Train(const RunOptions& options) {
  ASSIGN_OR_RETURN(const Run run, PrepareRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(run)));
  const std::unique_ptr<Report> report =
      options.json ? MakeJsonReport() : MakeTextReport(options.epochs);
  StopOnSignals();
  report->Start(run);
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration, CreateTrainer(options, run)));
  const absl::Time start = absl::Now();
  Outcome outcome;
  ASSIGN_OR_RETURN(
      outcome.fit,
      Fit(*trainer, run.data,
          {.epochs = options.epochs,
           .seed = options.seed,
           .stop = &stop_requested,
           .on_step = [&](const engine::FitProgress& progress) { report->Step(progress); },
           .on_epoch = [&](const engine::EpochResult& result) { report->Epoch(result); }}));
  outcome.elapsed = absl::Now() - start;
  outcome.devices = trainer->Devices();
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer->ParametersHash());
  report->End(outcome);
  return outcome.fit.stopped ? kExitInterrupted : kExitOk;
}

}  // namespace

Command AddTrainCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("train", "Train a model that is spread over devices");
  const auto options = std::make_shared<RunOptions>();
  AddPlanFlags(*flags, *options);
  AddTrainingFlags(*flags, *options);
  return {flags, [options] { return Train(*options); }};
}

}  // namespace stagecoach::tools
