#include "tools/cli/train_command.h"

#include <signal.h>

#include <CLI/CLI.hpp>
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
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/stop_vote.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/launched.h"
#include "tools/cli/machine.h"
#include "tools/cli/report.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {
namespace {

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores it");

// From here on the first Ctrl-C (or SIGTERM) asks for a stop after the present step, among
// processes of all, and the second ends the process.
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
  if (run.prepared.device.kind != engine::DeviceKind::kCpu) return absl::OkStatus();
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  int64_t needed_bytes = 0;
  for (const partition::RankReport& rank : run.prepared.report.ranks)
    needed_bytes += run.prepared.plan.replicas() * rank.peak_bytes();
  if (memory_bytes > 0 && needed_bytes > memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all devices together need ", base::FormatBytes(needed_bytes), ", this machine has ",
        base::FormatBytes(memory_bytes), ": use a smaller model or smaller micro-batches"));
  }
  return absl::OkStatus();
}

absl::Duration LongestWait(const RunOptions& options) {
  return absl::Seconds(options.deadline_seconds);
}
base::Deadline DeadlineOf(const RunOptions& options) {
  return base::Deadline::After(LongestWait(options));
}

// What processes must have alike for their steps to be those of one run.
std::string Fingerprint(const RunOptions& options, const Run& run) {
  const auto size_of = [](const engine::Dataset& data) {
    return absl::StrCat(data.rows(), "x", data.features(), "x", data.classes());
  };
  return absl::StrCat("epochs: ", options.epochs, "\ndata to train on: ", size_of(*run.data.train),
                      "\ndata to test: ", size_of(*run.data.test), "\n");
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> CreateTrainer(const RunOptions& options,
                                                               const Run& run,
                                                               engine::Rendezvous* rendezvous) {
  const int64_t steps = options.epochs * StepsPerEpoch(*run.data.train, run.prepared.plan);
  return engine::Trainer::Create(run.prepared,
                                 {.optimizer = run.prepared.optimizer,
                                  .learning_rate = RateScheduleOf(options, steps),
                                  .seed = options.seed,
                                  .device = run.prepared.device,
                                  .exchange = ExchangeOf(options.device, run.prepared.device),
                                  .rendezvous = rendezvous,
                                  .fingerprint = Fingerprint(options, run),
                                  .deadline = LongestWait(options),
                                  .replica_check_steps = options.replica_check_steps,
                                  .trace = WantsTraces(options)});
}

// Simulates a step at the times that were measured.
absl::StatusOr<schedule::Trace> SimulateStep(engine::Trainer& trainer) {
  ASSIGN_OR_RETURN(const schedule::Costs costs, trainer.MeasuredCosts());
  const partition::LoweredPlan& lowered = trainer.run().lowered;
  ASSIGN_OR_RETURN(schedule::Simulation simulation,
                   schedule::Simulate(lowered.training, costs,
                                      {.sends = SendsOf(lowered.transfers), .keep_trace = true}));
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

// For a process other than that of rank 0, which alone reports.
class SilentReport final : public Report {
 public:
  void Start(const Run& /*run*/) override {}
  void Step(const engine::FitProgress& /*progress*/) override {}
  void Epoch(const engine::EpochResult& /*result*/) override {}
  void End(const Run& /*run*/, const Outcome& /*outcome*/) override {}
};

// `rendezvous`: with the other processes of the run; null if there is one.
absl::StatusOr<int> TrainOnDevices(const RunOptions& options, engine::Rendezvous* rendezvous) {
  ASSIGN_OR_RETURN(const Run run, MakeRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(options, run)));
  std::unique_ptr<Report> report;
  if (options.rank.value_or(0) > 0) {
    report = std::make_unique<SilentReport>();
  } else {
    report = options.json ? MakeJsonReport(options.explain)
                          : MakeTextReport(options.epochs, options.explain);
  }
  StopOnSignals();
  report->Start(run);
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration,
                        OnDevices(run.prepared.device, CreateTrainer(options, run, rendezvous))));
  engine::StopVote stop(rendezvous, {.wanted = [] { return stop_requested.load(); },
                                     .deadline = LongestWait(options)});
  const absl::Time start = absl::Now();
  Outcome outcome;
  absl::StatusOr<engine::FitResult> fit =
      Fit(*trainer, run.data,
          {.epochs = options.epochs,
           .seed = options.seed,
           .stop = [&] { return stop.MustStop(); },
           .on_step = [&](const engine::FitProgress& progress) { report->Step(progress); },
           .on_epoch = [&](const engine::EpochResult& result) { report->Epoch(result); }});
  // Before the trainer goes, which takes leave of ranks that may still wait for this one.
  if (!fit.ok() && rendezvous != nullptr) rendezvous->Fail(fit.status(), DeadlineOf(options));
  ASSIGN_OR_RETURN(outcome.fit, std::move(fit));
  outcome.elapsed = absl::Now() - start;
  ASSIGN_OR_RETURN(outcome.devices, trainer->Devices());
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer->ParametersHash());
  report->End(run, outcome);
  RETURN_IF_ERROR(From(Origin::kConfiguration, WriteTraces(options, *trainer)));
  return outcome.fit.stopped ? kExitInterrupted : kExitOk;
}

// Returns once all are there, so that each hears why another ends.
absl::StatusOr<std::unique_ptr<engine::Rendezvous>> Meet(const engine::Launch& launch,
                                                         const RunOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<engine::Rendezvous> rendezvous,
                   From(Origin::kConfiguration, ConnectRendezvous(launch, LongestWait(options))));
  RETURN_IF_ERROR(From(Origin::kConfiguration, rendezvous->Barrier(DeadlineOf(options))));
  return rendezvous;
}

// What is wrong with this process's own flags comes last, for the others are to hear of it; if they
// cannot be met, it comes first.
absl::StatusOr<int> TrainAsRank(const engine::Launch& launch, const RunOptions& given) {
  const absl::StatusOr<RunOptions> options = From(Origin::kUsage, OptionsOfRank(launch, given));
  const absl::StatusOr<std::unique_ptr<engine::Rendezvous>> rendezvous = Meet(launch, given);
  if (!rendezvous.ok()) return options.ok() ? rendezvous.status() : options.status();
  const auto train = [&]() -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(RunOptions own, options);
    RETURN_IF_ERROR(ChooseGpu(launch, own));
    return TrainOnDevices(own, rendezvous->get());
  };
  const absl::StatusOr<int> result = train();
  if (!result.ok()) (*rendezvous)->Fail(result.status(), DeadlineOf(given));
  return result;
}

absl::StatusOr<int> Train(const RunOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  if (launch.has_value()) return TrainAsRank(*launch, options);
  return TrainOnDevices(options, nullptr);
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
