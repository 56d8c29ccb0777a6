#include "engine/session/run_config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/runtime/stage/profile.h"
#include "engine/session/asked_schedule.h"
#include "engine/session/machine.h"
#include "engine/session/training.h"
#include "engine/train/measured_profile.h"
#include "engine/train/trainer.h"
#include "partition/io/plan_file.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/evaluation_of.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::engine {
namespace {

absl::Status CheckRows(const RunConfig& options, const Dataset& train, int64_t batch_rows) {
  if (train.rows() >= batch_rows) return absl::OkStatus();
  const bool is_limited = options.rows.value_or(0) > 0;
  return absl::InvalidArgumentError(
      absl::StrCat("the training data has ", train.rows(), " rows",
                   is_limited ? absl::StrCat(" (", RowsFlag(options), ")") : "",
                   ", less than one batch of ", batch_rows, ": use more rows or a smaller batch"));
}

// Whether each rank of the run is a process.
bool IsProcess(const RunConfig& options) { return options.rank.has_value(); }

// How the plan is to be found.
absl::StatusOr<PlanOptions> PlanOptionsOf(const RunConfig& options) {
  const int blocks = options.gradient_blocks.value_or(options.replicas);
  PlanOptions plan = {
      .devices = options.stages.value_or(kDefaultStages),
      .replication = {options.replicas, blocks, options.shards_optimizer, options.reduction},
      .schedule = options.schedule.empty() ? kUsualSchedule : options.schedule,
      .chunks = options.chunks,
      .micro_batches = options.micro_batches.value_or(std::max(kDefaultMicroBatches, blocks)),
      .recompute = options.recompute};
  plan.results = ResultsOf(options, plan.replication);
  if (schedule::IsScheduleFile(options.schedule)) {
    ASSIGN_OR_RETURN(plan.given,
                     ReadAskedSchedule(options.schedule, {.stages = options.stages,
                                                          .micro_batches = options.micro_batches,
                                                          .chunks = options.chunks}));
    plan.devices = plan.given->num_ranks();
    plan.micro_batches = plan.given->num_micro_batches * options.replicas;
  }
  RETURN_IF_ERROR(CheckReplication(plan.replication, plan.micro_batches));
  RETURN_IF_ERROR(CheckBatch(options.batch, plan.micro_batches));
  plan.micro_batch_rows = options.batch / plan.micro_batches;
  return plan;
}

absl::Status CheckBudget(const partition::PlanReport& report, int64_t device_memory_bytes) {
  if (device_memory_bytes == 0) return absl::OkStatus();
  const std::vector<partition::RankReport>& ranks = report.ranks;
  // The one that needs most: a budget that suffices for it suffices for all.
  const auto largest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const auto& a, const auto& b) { return a.peak_bytes() < b.peak_bytes(); });
  if (largest->peak_bytes() <= device_memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan does not fit: ",
                   partition::Excess(absl::StrCat(largest - ranks.begin()), largest->peak_bytes(),
                                     device_memory_bytes),
                   "\n", PlanTable(report)));
}

bool HasPlan(const RunConfig& options) {
  return options.plan.has_value() || !options.plan_file.empty();
}

// Returns the source of the given plan.
std::string SourceOfPlan(const RunConfig& options) {
  return options.plan.has_value() ? "the checkpoint" : options.plan_file;
}

// Says it where the plan of a file was made for a model whose parameters are so many others that
// its stages may be far from even.
void CompareModels(const RunConfig& options, const partition::PlanFile& file,
                   const PreparedRun& run) {
  constexpr double kMost = 1.1;
  int64_t bytes = 0;
  for (const partition::LayerCost& layer : run.profile.layers)
    bytes += layer.memory.parameter_bytes;
  const auto was = static_cast<double>(file.parameter_bytes), is = static_cast<double>(bytes);
  if (file.parameter_bytes == 0 || std::max(was, is) <= kMost * std::min(was, is)) return;
  options.notices.Tell(absl::StrCat(SourceOfPlan(options), " was made for a model of ",
                                    base::FormatBytes(file.parameter_bytes), " of parameters",
                                    file.model.empty() ? "" : absl::StrCat(" (", file.model, ")"),
                                    ", and this one has ", base::FormatBytes(bytes),
                                    ": its stages may take very different times; plan it anew"));
}

absl::StatusOr<partition::PlanFile> TakePlan(const RunConfig& options) {
  partition::PlanFile file;
  if (options.plan.has_value()) {
    file.plan = *options.plan;
  } else {
    ASSIGN_OR_RETURN(file, partition::ReadPlanFile(options.plan_file));
  }
  // The model's own order, spelled out.
  if (std::is_sorted(file.plan.order.begin(), file.plan.order.end())) file.plan.order.clear();
  const absl::Status supported = CheckSupported(file.plan);
  if (!supported.ok()) {
    return base::Annotate(supported, SourceOfPlan(options));
  }
  return file;
}

absl::StatusOr<PreparedRun> UsePlan(const RunConfig& options, const Model& model, GivenPlan given) {
  if (given.plan.num_layers != model.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the plan is for %d layers, the model has %d", SourceOfPlan(options),
                        given.plan.num_layers, model.num_layers()));
  }
  given.recompute = options.recompute;
  given.results = ResultsOf(options, given.plan.replication);
  given.transfers = TransfersOf({.ranks = given.plan.num_ranks(),
                                 .replicas = given.plan.replicas(),
                                 .device = given.device,
                                 .exchange = ExchangeOf(options.device, given.device)});
  ASSIGN_OR_RETURN(PreparedRun run, OnDevices(given.device, PrepareRun(model, given)));
  RETURN_IF_ERROR(CheckBudget(run.report, options.device_memory_bytes));
  return run;
}

// A run, and why its schedule was chosen, if it was.
struct ChosenRun {
  PreparedRun run;
  std::string choice = {};
};

// A plan for more passes than these takes longer to find than it may gain in a short run.
constexpr int64_t kMostPassesToChoose = 4096;
constexpr double kLeastGain = 0.02;

absl::StatusOr<double> PredictedStepNs(const PreparedRun& run, const PlanOptions& options) {
  const int devices = run.plan.num_devices();
  ASSIGN_OR_RETURN(
      const partition::PlanEvaluation evaluation,
      EvaluationOf(run.plan, JoinProfiles("", {run.profile}), partition::UniformCluster(devices)));
  return StepNsOnCores(evaluation, options.cores > 0 ? options.cores : devices);
}

absl::Status CheckHasRoom(const RunConfig& options, const PreparedRun& run) {
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run));
  return CheckHasMemoryFor(run, {.saves = !options.checkpoints.empty()});
}

// The usual schedule, unless any schedule has a plan that is faster by kLeastGain, and fits.
absl::StatusOr<ChosenRun> ChooseRun(const RunConfig& options, const Model& model,
                                    const ModelProfile& profile, const PlanOptions& plan) {
  ASSIGN_OR_RETURN(PreparedRun usual, PrepareRun(model, profile, plan));
  const int64_t passes = int64_t{plan.devices} * plan.micro_batches;
  // With a budget, the usual one needs least, and the search may take long.
  const bool is_open = plan.devices > 1 && passes <= kMostPassesToChoose && plan.chunks == 0 &&
                       plan.device.memory_bytes == 0 && options.recompute == Recompute::kPlanned;
  if (!is_open) return ChosenRun{std::move(usual)};
  PlanOptions any = plan;
  any.schedule = partition::kAnySchedule;
  absl::StatusOr<PreparedRun> fastest = PrepareRun(model, profile, any);
  if (!fastest.ok() || !CheckHasRoom(options, *fastest).ok()) return ChosenRun{std::move(usual)};
  ASSIGN_OR_RETURN(const double usual_ns, PredictedStepNs(usual, plan));
  ASSIGN_OR_RETURN(const double fastest_ns, PredictedStepNs(*fastest, plan));
  const double gain = usual_ns / fastest_ns - 1;
  if (gain < kLeastGain) return ChosenRun{std::move(usual)};
  const bool is_searched = fastest->plan.schedule.name == partition::kAnySchedule;
  std::string choice =
      absl::StrFormat("%s, predicted to be %.0f %% faster than %s",
                      is_searched ? "an order of its own" : fastest->plan.schedule.name, 100 * gain,
                      kUsualSchedule);
  const int devices = plan.devices * plan.replication.replicas;
  if (plan.cores > 0 && plan.cores < devices) {
    absl::StrAppendFormat(&choice, " where %d devices share %.3g cores", devices, plan.cores);
  }
  return ChosenRun{*std::move(fastest), std::move(choice)};
}

absl::StatusOr<ChosenRun> CutModel(const RunConfig& options, const Model& model,
                                   const PlanOptions& plan) {
  const ProfileOptions profile_options = {.micro_batch_rows = plan.micro_batch_rows,
                                          .optimizer = plan.optimizer,
                                          .device = plan.device,
                                          .results = plan.results};
  ASSIGN_OR_RETURN(ModelProfile profile,
                   OnDevices(plan.device, AnalyzeModel(model, profile_options)));
  if (options.profile == "measured") {
    RETURN_IF_ERROR(CheckCanMeasure(profile.layers, plan.device));
    const int devices = DevicesAtOnce(plan.devices, plan.device);
    const auto work = options.notices.BeginWork(DescribeMeasuring({plan.micro_batch_rows}));
    ASSIGN_OR_RETURN(profile, OnDevices(plan.device, MeasureModel(model, profile_options,
                                                                  {.devices = devices})));
  }
  if (options.schedule.empty()) return ChooseRun(options, model, profile, plan);
  ASSIGN_OR_RETURN(PreparedRun run, PrepareRun(model, std::move(profile), plan));
  return ChosenRun{std::move(run)};
}

}  // namespace

std::string RowsFlag(const RunConfig& options) {
  const bool is_saved = absl::c_linear_search(options.taken, "--train-samples");
  return absl::StrCat("--train-samples is ", *options.rows, is_saved ? ", in the checkpoint" : "");
}

absl::Status CheckBatch(int64_t batch, int64_t micro_batches) {
  if (micro_batches < 1) {
    return base::UsageError(
        absl::StrCat("--micro-batches is ", micro_batches, ", expected at least 1"));
  }
  const int64_t rest = batch % micro_batches;
  if (rest == 0) return absl::OkStatus();
  const int64_t below = batch - rest;
  const int64_t above = below + micro_batches;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a batch of %d rows does not divide into %d equal micro-batches: use --global-batch-size %d",
      batch, micro_batches, below > 0 && rest <= micro_batches / 2 ? below : above));
}

double CoresFor(const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return std::numeric_limits<double>::infinity();
  return base::AvailableCpus() / static_cast<double>(device.threads);
}

std::string DescribeMeasuring(absl::Span<const int64_t> micro_batch_rows) {
  return absl::StrCat("measures the layers, with micro-batches of ",
                      absl::StrJoin(micro_batch_rows, ", "),
                      micro_batch_rows == absl::Span<const int64_t>({1}) ? " row" : " rows");
}

int DevicesAtOnce(int devices, const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return 1;
  return std::clamp(InspectMachine().processors / device.threads, 1, devices);
}

absl::Status CheckCanMeasure(const std::vector<partition::LayerCost>& layers,
                             const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return absl::OkStatus();
  int64_t needed_bytes = 0;
  for (const partition::LayerCost& layer : layers) {
    needed_bytes +=
        2 * layer.memory.parameter_bytes + layer.memory.optimizer_bytes + layer.memory.frozen_bytes;
  }
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  if (memory_bytes == 0 || needed_bytes <= memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "to measure the layers, all are trained at once, which takes ",
      base::FormatBytes(needed_bytes), "; this machine has ", base::FormatBytes(memory_bytes),
      ": use estimated times, or measure a model of fewer layers"));
}

schedule::ResultsPlace ResultsOf(const RunConfig& options,
                                 const partition::Replication& replication) {
  if (!IsProcess(options)) return schedule::ResultsPlace::kNowhere;
  const bool has_living_copies = replication.replicas > 1 && !replication.shards_optimizer;
  return options.is_supervised && has_living_copies ? schedule::ResultsPlace::kBeforeSteps
                                                    : schedule::ResultsPlace::kEnd;
}

absl::StatusOr<DeviceSpec> ChooseDevices(const RunConfig& options, int devices) {
  ASSIGN_OR_RETURN(DeviceSpec device, Resolve(options.device, devices, options.notices));
  device.memory_bytes = options.device_memory_bytes;
  return device;
}

// Before anything is created on GPUs: other programs may use their memory, too.
absl::Status CheckGpusHaveRoom(const RunConfig& options, const PreparedRun& run) {
  std::vector<int64_t> bytes(static_cast<size_t>(run.plan.num_devices()));
  for (int device = 0; device < run.plan.num_devices(); ++device) {
    const schedule::Rank rank(device / run.plan.replicas());
    const bool is_here = !IsProcess(options) || *options.rank == device;
    if (is_here) bytes[static_cast<size_t>(device)] = run.report.of(rank).peak_bytes();
  }
  return CheckGpuMemory(run.device, bytes);
}

namespace {

// The fastest of the plans over stages and replicas that together take all of the devices left.
absl::StatusOr<PreparedRun> CutOverDevicesLeft(const RunConfig& options, const Workload& workload,
                                               const DeviceSpec& device) {
  const int devices = *options.devices_left;
  std::optional<PreparedRun> best;
  double best_ns = 0.0;
  absl::Status refusal;
  for (int replicas = 1; replicas <= devices; replicas *= 2) {
    if (devices % replicas != 0) continue;
    RunConfig shape = options;
    shape.gradient_blocks = options.gradient_blocks.value_or(options.replicas);
    shape.replicas = replicas;
    shape.stages = devices / replicas;
    if (replicas == 1) {
      shape.shards_optimizer = false;
      shape.reduction = partition::ReductionKind::kTree;
    }
    const auto judge = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOf(shape));
      plan.device = device;
      plan.exchange = ExchangeOf(options.device, device);
      plan.optimizer = workload.optimizer;
      shape.schedule = plan.schedule;  // one is as good as another to compare shapes by
      ASSIGN_OR_RETURN(ChosenRun chosen, CutModel(shape, workload.model, plan));
      PreparedRun& run = chosen.run;
      ASSIGN_OR_RETURN(const partition::PlanEvaluation evaluation,
                       EvaluationOf(run.plan, JoinProfiles("", {run.profile}),
                                    partition::UniformCluster(devices, device.memory_bytes)));
      if (best.has_value() && best_ns <= evaluation.objective_ns) return absl::OkStatus();
      best = std::move(run);
      best_ns = evaluation.objective_ns;
      return absl::OkStatus();
    };
    refusal.Update(judge());
  }
  if (best.has_value()) return *std::move(best);
  return base::Annotate(refusal, absl::StrCat("on the ", devices, " devices that are left"));
}

absl::StatusOr<TrainingRun> RunOfDevicesLeft(const RunConfig& options) {
  ASSIGN_OR_RETURN(const DeviceSpec device, ChooseDevices(options, *options.devices_left));
  ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(options));
  RETURN_IF_ERROR(CheckRows(options, *workload.data.train, options.batch));
  ASSIGN_OR_RETURN(PreparedRun run, CutOverDevicesLeft(options, workload, device));
  options.notices.Tell(
      absl::StrCat("continues on the ", *options.devices_left,
                   " devices that are left: ", partition::Counted(run.plan.num_ranks(), "stage"),
                   ", ", partition::Counted(run.plan.replicas(), "replica")));
  return TrainingRun{std::move(workload.data), std::move(workload.model_text), std::move(run)};
}

// The options for a plan that gives the bits of one that is for another number of devices.
RunConfig InPlaceOf(const partition::Plan& plan, RunConfig options) {
  options.plan.reset();
  options.plan_file.clear();
  options.schedule = schedule::FindGenerator(plan.schedule.name).ok() ? plan.schedule.name : "1f1b";
  options.chunks = 0;
  options.replicas = plan.replicas();
  options.gradient_blocks = plan.replication.gradient_blocks;
  options.shards_optimizer = plan.replication.shards_optimizer;
  options.reduction = plan.replication.reduction;
  options.micro_batches = plan.micro_batches();
  options.batch = plan.batch_rows();
  return options;
}

absl::StatusOr<TrainingRun> RunOfGivenPlan(const RunConfig& options) {
  ASSIGN_OR_RETURN(const partition::PlanFile file, TakePlan(options));
  const partition::Plan& plan = file.plan;
  if (options.devices_left.value_or(plan.num_devices()) != plan.num_devices()) {
    return RunOfDevicesLeft(InPlaceOf(plan, options));
  }
  ASSIGN_OR_RETURN(const DeviceSpec device, ChooseDevices(options, plan.num_devices()));
  ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(options));
  RETURN_IF_ERROR(CheckRows(options, *workload.data.train, plan.batch_rows()));
  ASSIGN_OR_RETURN(PreparedRun run,
                   UsePlan(options, workload.model,
                           {.plan = plan, .optimizer = workload.optimizer, .device = device}));
  CompareModels(options, file, run);
  return TrainingRun{std::move(workload.data), std::move(workload.model_text), std::move(run)};
}

absl::StatusOr<PlanOptions> PlanOptionsOnDevices(const RunConfig& options) {
  ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOf(options));
  ASSIGN_OR_RETURN(plan.device, ChooseDevices(options, plan.devices * plan.replication.replicas));
  plan.exchange = ExchangeOf(options.device, plan.device);
  // Among processes, all must choose alike, wherever they are.
  if (!IsProcess(options)) plan.cores = CoresFor(plan.device);
  return plan;
}

// Takes fewer devices than usual if the model has fewer layers, and none were asked for.
void LimitDevices(const RunConfig& options, const Model& model, PlanOptions& plan) {
  if (options.stages.has_value() || plan.given.has_value() || IsProcess(options)) return;
  plan.devices = std::min(plan.devices, std::max(1, model.num_layers() / std::max(1, plan.chunks)));
}

absl::StatusOr<TrainingRun> RunOfFoundPlan(const RunConfig& options) {
  if (options.devices_left.has_value() && schedule::IsScheduleFile(options.schedule)) {
    RunConfig other = options;
    other.stages.reset();
    ASSIGN_OR_RETURN(const PlanOptions plan, PlanOptionsOf(other));
    if (plan.devices * plan.replication.replicas != *options.devices_left) {
      other.schedule = "1f1b";
      other.micro_batches = plan.micro_batches;
      return RunOfDevicesLeft(other);
    }
  } else if (options.devices_left.has_value()) {
    return RunOfDevicesLeft(options);
  }
  ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOnDevices(options));
  ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(options));
  plan.optimizer = workload.optimizer;
  LimitDevices(options, workload.model, plan);
  RETURN_IF_ERROR(CheckRows(options, *workload.data.train, options.batch));
  ASSIGN_OR_RETURN(ChosenRun chosen, CutModel(options, workload.model, plan));
  return TrainingRun{.data = std::move(workload.data),
                     .model_text = std::move(workload.model_text),
                     .prepared = std::move(chosen.run),
                     .choice = std::move(chosen.choice)};
}

absl::StatusOr<TrainingRun> MakeRunOnDevices(const RunConfig& options) {
  ASSIGN_OR_RETURN(TrainingRun run,
                   HasPlan(options) ? RunOfGivenPlan(options) : RunOfFoundPlan(options));
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run.prepared));
  ASSIGN_OR_RETURN(run.learning_rate, LearningRateOf(options, NetworkFeaturesOf(*run.data.train),
                                                     StepsOf(options, run)));
  return run;
}

}  // namespace

absl::StatusOr<PreparedRun> CutOverDevices(const RunConfig& options, const PlannedModel& planned) {
  return WithFallBack(options.device, options.notices,
                      [&](const DeviceChoice& device) -> absl::StatusOr<PreparedRun> {
                        RunConfig on_device = options;
                        on_device.device = device;
                        ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOnDevices(on_device));
                        plan.optimizer = planned.optimizer;
                        LimitDevices(on_device, planned.model, plan);
                        ASSIGN_OR_RETURN(ChosenRun chosen,
                                         CutModel(on_device, planned.model, plan));
                        return std::move(chosen.run);
                      });
}

absl::Status CheckPlanFlags(const RunConfig& options) {
  return HasPlan(options) ? TakePlan(options).status() : PlanOptionsOf(options).status();
}

absl::StatusOr<TrainingRun> MakeRun(const RunConfig& options) {
  return WithFallBack(options.device, options.notices, [&](const DeviceChoice& device) {
    RunConfig on_device = options;
    on_device.device = device;
    return MakeRunOnDevices(on_device);
  });
}

}  // namespace stagecoach::engine
