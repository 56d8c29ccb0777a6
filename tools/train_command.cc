#include "tools/train_command.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/fit.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/trainer.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
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
absl::Status CheckRun(const RunOptions& options, const Run& run) {
  for (const std::string& path : {options.trace, options.simulated_trace}) {
    if (!path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  if (StepsPerEpoch(*run.data.train, run.plan) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the training data has ", run.data.train->rows(), " rows, less than one batch of ",
        run.plan.batch_rows(), ": use more rows or a smaller batch"));
  }
  if (run.device.kind != engine::DeviceKind::kCpu) return absl::OkStatus();
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  int64_t needed_bytes = 0;
  for (const partition::RankReport& rank : run.predicted.ranks) needed_bytes += rank.peak_bytes();
  if (memory_bytes > 0 && needed_bytes > memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all devices together need ", base::FormatBytes(needed_bytes), ", this machine has ",
        base::FormatBytes(memory_bytes), ": use a smaller model or smaller micro-batches"));
  }
  return absl::OkStatus();
}

bool WantsTraces(const RunOptions& options) {
  return !options.trace.empty() || !options.simulated_trace.empty();
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> CreateTrainer(const RunOptions& options,
                                                               const Run& run,
                                                               engine::Rendezvous* rendezvous) {
  const int64_t steps = options.epochs * StepsPerEpoch(*run.data.train, run.plan);
  return engine::Trainer::Create(run.model, run.plan,
                                 {.optimizer = run.optimizer,
                                  .learning_rate = RateScheduleOf(options, steps),
                                  .seed = options.seed,
                                  .device = run.device,
                                  .exchange = ExchangeOf(options.device, run.device),
                                  .rendezvous = rendezvous,
                                  .deadline = absl::Seconds(options.deadline_seconds),
                                  .trace = WantsTraces(options)});
}

// Simulates a step at the times that were measured.
absl::StatusOr<schedule::Trace> SimulateStep(engine::Trainer& trainer) {
  ASSIGN_OR_RETURN(const schedule::Costs costs, trainer.MeasuredCosts());
  const schedule::Transfers transfers = trainer.transfers();
  ASSIGN_OR_RETURN(const schedule::Schedule lowered, LoweredSchedule(trainer.plan(), transfers));
  ASSIGN_OR_RETURN(
      schedule::Simulation simulation,
      schedule::Simulate(lowered, costs, {.sends = SendsOf(transfers), .keep_trace = true}));
  return std::move(simulation.trace);
}

absl::Status WriteTraces(const RunOptions& options, engine::Trainer& trainer) {
  if (!WantsTraces(options) || trainer.steps() == 0) return absl::OkStatus();
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(const schedule::Trace measured, trainer.LastTrace());
    RETURN_IF_ERROR(schedule::WriteTrace(measured, options.trace));
  }
  if (!options.simulated_trace.empty()) {
    ASSIGN_OR_RETURN(const schedule::Trace simulated, SimulateStep(trainer));
    RETURN_IF_ERROR(schedule::WriteTrace(simulated, options.simulated_trace));
  }
  return absl::OkStatus();
}

// Of a process whose rank 0 says it all.
class SilentReport final : public Report {
 public:
  void Start(const Run& /*run*/) override {}
  void Step(const engine::FitProgress& /*progress*/) override {}
  void Epoch(const engine::EpochResult& /*result*/) override {}
  void End(const Outcome& /*outcome*/) override {}
};

// Options of a process that a launcher has started for one of the devices.
absl::StatusOr<RunOptions> OptionsOf(const engine::Launch& launch, RunOptions options) {
  if (options.device.kind != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat(
        launch.launcher, " has started ", launch.ranks,
        " processes, one for each device, which only CUDA devices can be trained in: add --device "
        "cuda, or start one process"));
  }
  if (options.device.exchange == "copies") {
    return absl::InvalidArgumentError("--exchange copies is for devices of one process");
  }
  if (WantsTraces(options)) {
    return absl::InvalidArgumentError(
        "a process knows its own device's times only: trace a run of one process");
  }
  if (options.profile == "measured") {
    return absl::InvalidArgumentError(
        "each process would measure for itself: plan with --profile measured once, and train "
        "--plan");
  }
  if (options.stages.value_or(launch.ranks) != launch.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(launch.launcher, " has started ", launch.ranks,
                                                   " processes for ", *options.stages,
                                                   " devices; start one for each"));
  }
  options.device.exchange = "nccl";
  options.rank = launch.rank;
  if (!options.stages.has_value()) options.stages = launch.ranks;
  if (options.device.gpus.empty()) {
    options.device.gpus.assign(static_cast<size_t>(launch.ranks), launch.local_rank);
  }
  return options;
}

absl::StatusOr<int> Train(const RunOptions& given) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  RunOptions options = given;
  std::unique_ptr<engine::Rendezvous> rendezvous;
  if (launch.has_value()) {
    ASSIGN_OR_RETURN(options, From(Origin::kUsage, OptionsOf(*launch, given)));
    ASSIGN_OR_RETURN(
        rendezvous,
        From(Origin::kConfiguration, ConnectRendezvous(*launch, base::Deadline::After(absl::Seconds(
                                                                    options.deadline_seconds)))));
  }
  ASSIGN_OR_RETURN(const Run run, PrepareRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(options, run)));
  std::unique_ptr<Report> report;
  if (launch.has_value() && launch->rank > 0) {
    report = std::make_unique<SilentReport>();
  } else {
    report = options.json ? MakeJsonReport() : MakeTextReport(options.epochs);
  }
  // Among processes, who stops alone makes the others wait: there a signal ends the process.
  if (!launch.has_value()) StopOnSignals();
  report->Start(run);
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration,
                        OnDevices(run.device, CreateTrainer(options, run, rendezvous.get()))));
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
  RETURN_IF_ERROR(From(Origin::kConfiguration, WriteTraces(options, *trainer)));
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
