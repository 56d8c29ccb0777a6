#include "engine/session/plan_choice.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "engine/runtime/stage/profile.h"
#include "engine/session/machine/machine.h"
#include "engine/session/training.h"
#include "engine/train/measured_profile.h"
#include "engine/train/trainer.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/io/plan_file.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "schedule/io/asked_schedule.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::engine {
namespace {

// Devices of each replica, if neither a plan nor a schedule decides.
absl::StatusOr<int> DevicesOf(const RunConfig& options) {
  if (options.stages.has_value()) return *options.stages;
  if (!options.cluster.has_value()) return kDefaultStages;
  const int devices = options.cluster->size();
  const int of_each = options.replicas * options.tensor_parts;
  if (devices % of_each == 0) return devices / of_each;
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", devices, " devices of ", NameOfCluster(options), " cannot be divided among ",
      options.replicas, " replicas: say with --devices how many each takes"));
}

int DefaultMicroBatches(int blocks) {
  return blocks > 0 && kDefaultMicroBatches % blocks == 0 ? kDefaultMicroBatches : blocks;
}

// How the plan is to be found.
absl::StatusOr<PlanOptions> PlanOptionsOf(const RunConfig& options) {
  const int blocks = options.gradient_blocks.value_or(options.replicas);
  ASSIGN_OR_RETURN(const int devices, DevicesOf(options));
  PlanOptions plan = {.devices = devices,
                      .tensor_parts = options.tensor_parts,
                      .replication = {.replicas = options.replicas,
                                      .gradient_blocks = blocks,
                                      .shards_optimizer = options.shards_optimizer,
                                      .reduction = options.reduction,
                                      .offloads_optimizer = options.offloads_optimizer},
                      .schedule = options.schedule.empty() ? kUsualSchedule : options.schedule,
                      .chunks = options.chunks,
                      .micro_batches = options.micro_batches.value_or(DefaultMicroBatches(blocks)),
                      .recompute = options.recompute,
                      .offload = options.offload.value_or(0.0)};
  plan.results = ResultsOf(options, plan.replication);
  if (schedule::IsScheduleFile(options.schedule)) {
    ASSIGN_OR_RETURN(plan.given, schedule::ReadAskedSchedule(
                                     options.schedule, {.stages = options.stages,
                                                        .micro_batches = options.micro_batches,
                                                        .chunks = options.chunks}));
    plan.devices = plan.given->num_ranks();
    plan.micro_batches = plan.given->num_micro_batches * options.replicas;
  }
  RETURN_IF_ERROR(CheckReplication(plan.replication, plan.micro_batches));
  if (options.batch.has_value()) {
    RETURN_IF_ERROR(CheckBatch(*options.batch, plan.micro_batches));
  }
  plan.micro_batch_rows =
      options.batch.value_or(DefaultBatch(0, plan.micro_batches)) / plan.micro_batches;
  return plan;
}

absl::Status CheckBudgets(const PreparedRun& run) {
  const absl::Status fits = CheckFits(run.compiled, run.device.ClusterOf(run.plan().num_devices()));
  if (fits.ok()) return fits;
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan does not fit: ", fits.message(), "\n", PlanTable(run.compiled)));
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
  given.offload = options.offload;
  given.results = ResultsOf(options, given.plan.replication);
  given.transfers = TransfersOf({.ranks = given.plan.num_ranks(),
                                 .replication = given.plan.replication,
                                 .device = given.device,
                                 .exchange = ExchangeOf(options.device, given.device)});
  ASSIGN_OR_RETURN(PreparedRun run, OnDevices(given.device, PrepareRun(model, given)));
  RETURN_IF_ERROR(CheckBudgets(run));
  return run;
}

// A plan for more passes than these takes longer to find than it may gain in a short run.
constexpr int64_t kMostPassesToChoose = 4096;
constexpr double kLeastGain = 0.02;

absl::StatusOr<double> PredictedStepNs(const PreparedRun& run, const PlanOptions& options) {
  const int devices = run.plan().num_devices();
  ASSIGN_OR_RETURN(
      const partition::PlanEvaluation evaluation,
      EvaluatePlan(run.plan(), JoinProfiles("", {run.profile}), run.device.ClusterOf(devices)));
  // What is evaluated has groups of devices in place of devices.
  const double cores = options.cores > 0 ? options.cores : devices;
  return StepNsOnCores(evaluation, cores / run.plan().tensor_parts);
}

bool LimitsMemory(const DeviceSpec& device) {
  return device.memory_bytes > 0 || device.cluster.limits_memory();
}

std::string NameOfSchedule(const PreparedRun& run) {
  const std::string& name = run.plan().schedule.name;
  return name == partition::kAnySchedule ? "an order of its own" : name;
}

// The usual schedule, unless any schedule has a plan that is faster by kLeastGain, and fits.
absl::StatusOr<PreparedRun> ChooseRun(const RunConfig& options, const Model& model,
                                      const ModelProfile& profile, const PlanOptions& plan) {
  absl::StatusOr<PreparedRun> usual = PrepareRun(model, profile, plan);
  const int64_t passes = int64_t{plan.devices} * plan.micro_batches;
  const bool is_open = plan.devices > 1 && passes <= kMostPassesToChoose && plan.chunks == 0 &&
                       options.recompute == Recompute::kPlanned;
  // With a budget, the usual one needs least, and the search may take long: it is for devices that
  // are described, on which the usual one does not fit without repeating passes.
  const bool searches = usual.ok() ? !LimitsMemory(plan.device)
                                   : !plan.device.are_alike() && IsLackOfMemory(usual.status());
  if (!is_open || !searches) return usual;
  PlanOptions any = plan;
  any.schedule = partition::kAnySchedule;
  absl::StatusOr<PreparedRun> fastest = PrepareRun(model, profile, any);
  if (!fastest.ok() ||
      !CheckHasRoom(options, *fastest, {.saves = !options.checkpoints.empty()}).ok())
    return usual;
  if (!usual.ok()) {
    const auto recomputed = std::ssize(fastest->plan().recomputed);
    fastest->choice = absl::StrCat(
        NameOfSchedule(*fastest),
        recomputed > 0
            ? absl::StrCat(", with ", partition::Counted(recomputed, "layer"), " recomputed")
            : "",
        ", since ", kUsualSchedule, " does not fit the devices without recomputation");
    return fastest;
  }
  ASSIGN_OR_RETURN(const double usual_ns, PredictedStepNs(*usual, plan));
  ASSIGN_OR_RETURN(const double fastest_ns, PredictedStepNs(*fastest, plan));
  const double gain = usual_ns / fastest_ns - 1;
  if (gain < kLeastGain) return usual;
  fastest->choice = absl::StrFormat("%s, predicted to be %.0f %% faster than %s",
                                    NameOfSchedule(*fastest), 100 * gain, kUsualSchedule);
  const int devices = plan.all_devices();
  if (plan.cores > 0 && plan.cores < devices) {
    absl::StrAppendFormat(&fastest->choice, " where %d devices share %.3g cores", devices,
                          plan.cores);
  }
  return fastest;
}

absl::StatusOr<PreparedRun> CutModel(const RunConfig& options, const Model& model,
                                     const PlanOptions& plan) {
  const ProfileOptions profile_options = ProfileOptionsOf(plan);
  ASSIGN_OR_RETURN(ModelProfile profile,
                   OnDevices(plan.device, AnalyzeModel(model, profile_options)));
  if (options.profile == "measured") {
    RETURN_IF_ERROR(CheckCanMeasure(profile.layers, plan.device));
    const int devices = DevicesAtOnce(plan.devices * plan.tensor_parts, plan.device);
    const auto work = options.notices.BeginWork(DescribeMeasuring({plan.micro_batch_rows}));
    ASSIGN_OR_RETURN(profile, OnDevices(plan.device, MeasureModel(model, profile_options,
                                                                  {.devices = devices})));
  }
  if (options.schedule.empty()) return ChooseRun(options, model, profile, plan);
  return PrepareRun(model, std::move(profile), plan);
}

// The fastest of the plans over stages and replicas that together take all of the devices left.
absl::StatusOr<PreparedRun> CutOverDevicesLeft(const RunConfig& options,
                                               const PlannedModel& planned,
                                               const DeviceSpec& device) {
  const int devices = *options.devices_left;
  std::optional<PreparedRun> best;
  double best_ns = 0.0;
  absl::Status refusal;
  for (int replicas = 1; replicas <= devices; ++replicas) {
    if (devices % (replicas * options.tensor_parts) != 0) continue;
    RunConfig shape = options;
    shape.gradient_blocks = options.gradient_blocks.value_or(options.replicas);
    shape.replicas = replicas;
    shape.stages = devices / replicas / options.tensor_parts;
    if (replicas == 1) {
      shape.shards_optimizer = false;
      shape.reduction = partition::ReductionKind::kTree;
    }
    const auto judge = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOf(shape));
      plan.device = device;
      plan.exchange = ExchangeOf(options.device, device);
      plan.optimizer = planned.optimizer;
      shape.schedule = plan.schedule;  // one is as good as another to compare shapes by
      ASSIGN_OR_RETURN(PreparedRun run, CutModel(shape, planned.model, plan));
      ASSIGN_OR_RETURN(
          const partition::PlanEvaluation evaluation,
          EvaluatePlan(run.plan(), JoinProfiles("", {run.profile}), device.ClusterOf(devices)));
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

absl::StatusOr<PreparedRun> ChooseForDevicesLeft(RunConfig options, ModelSource model) {
  ASSIGN_OR_RETURN(const DeviceSpec device, ChooseDevices(options, *options.devices_left));
  ASSIGN_OR_RETURN(const PlannedModel planned, model(options.batch));
  if (!options.batch.has_value()) {
    ASSIGN_OR_RETURN(const PlanOptions plan, PlanOptionsOf(options));
    options.batch = DefaultBatch(planned.rows, plan.micro_batches);
  }
  ASSIGN_OR_RETURN(PreparedRun run, CutOverDevicesLeft(options, planned, device));
  options.notices.Tell(
      absl::StrCat("continues on the ", partition::Counted(*options.devices_left, "device"),
                   *options.devices_left == 1 ? " that is left: " : " that are left: ",
                   partition::Counted(run.plan().num_ranks(), "stage"), ", ",
                   partition::Counted(run.plan().replicas(), "replica")));
  return run;
}

// The options for a plan that gives the bits of one that is for another number of devices.
RunConfig InPlaceOf(const partition::Plan& plan, RunConfig options) {
  options.plan.reset();
  options.plan_file.clear();
  options.schedule = schedule::FindGenerator(plan.schedule.name).ok() ? plan.schedule.name : "1f1b";
  options.chunks = 0;
  options.replicas = plan.replicas();
  options.tensor_parts = plan.tensor_parts;
  options.offload = options.offload.value_or(plan.offload);
  options.offloads_optimizer = plan.replication.offloads_optimizer;
  options.gradient_blocks = plan.replication.gradient_blocks;
  options.shards_optimizer = plan.replication.shards_optimizer;
  options.reduction = plan.replication.reduction;
  options.micro_batches = plan.micro_batches();
  options.batch = plan.batch_rows();
  return options;
}

// Keeps those devices of a cluster, which a plan has; all, if it names none.
absl::Status KeepNamed(const std::vector<std::string>& names, RunConfig& options) {
  if (names.empty() || !options.cluster.has_value()) return absl::OkStatus();
  const std::vector<partition::ClusterDevice>& devices = options.cluster->devices;
  std::vector<int> kept;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(devices.begin(), devices.end(),
                     [&](const partition::ClusterDevice& device) { return device.name == name; });
    if (found == devices.end()) {
      return absl::InvalidArgumentError(absl::StrCat(options.plan_file, " is for device ", name,
                                                     ", which ", NameOfCluster(options),
                                                     " does not have: plan for these devices"));
    }
    kept.push_back(static_cast<int>(found - devices.begin()));
  }
  options.cluster = options.cluster->Keep(kept);
  return absl::OkStatus();
}

absl::StatusOr<PreparedRun> TakeGivenPlan(const RunConfig& options, ModelSource model) {
  ASSIGN_OR_RETURN(const partition::PlanFile file, TakePlan(options));
  const partition::Plan& plan = file.plan;
  if (options.devices_left.value_or(plan.num_devices()) != plan.num_devices()) {
    return ChooseForDevicesLeft(InPlaceOf(plan, options), model);
  }
  RunConfig on_named = options;
  RETURN_IF_ERROR(KeepNamed(file.devices, on_named));
  ASSIGN_OR_RETURN(const DeviceSpec device, ChooseDevices(on_named, plan.num_devices()));
  ASSIGN_OR_RETURN(const PlannedModel planned, model(plan.batch_rows()));
  ASSIGN_OR_RETURN(PreparedRun run,
                   UsePlan(options, planned.model,
                           {.plan = plan, .optimizer = planned.optimizer, .device = device}));
  CompareModels(options, file, run);
  return run;
}

// Takes fewer devices than usual if the model has fewer layers, and none were asked for.
void LimitDevices(const RunConfig& options, const Model& model, PlanOptions& plan) {
  if (options.stages.has_value() || plan.given.has_value() || options.is_process()) return;
  const int most = std::max(1, model.num_layers() / std::max(1, plan.chunks));
  if (plan.devices <= most) return;
  plan.devices = most;
  if (!options.cluster.has_value()) return;
  options.notices.Tell(
      absl::StrCat("the model has ", partition::Counted(model.num_layers(), "layer"),
                   ": only the first ", plan.all_devices(), " of the ", options.cluster->size(),
                   " devices of ", NameOfCluster(options), " are used"));
}

// Reads the cluster, if there is one, so that it is in the configuration from then on.
absl::StatusOr<RunConfig> WithCluster(RunConfig options) {
  ASSIGN_OR_RETURN(options.cluster, ReadCluster(options));
  return options;
}

}  // namespace

absl::StatusOr<std::optional<partition::Cluster>> PlannedCluster(const RunConfig& options) {
  ASSIGN_OR_RETURN(RunConfig own, WithCluster(options));
  if (own.cluster.has_value() && HasPlan(options)) {
    ASSIGN_OR_RETURN(const partition::PlanFile file, TakePlan(options));
    RETURN_IF_ERROR(KeepNamed(file.devices, own));
  }
  return std::move(own.cluster);
}

absl::StatusOr<TensorChoice> ChosenTensorParts(const RunConfig& options) {
  if (!HasPlan(options)) return TensorChoice{options.tensor_parts, "--tensor"};
  ASSIGN_OR_RETURN(const partition::PlanFile file, TakePlan(options));
  return TensorChoice{file.plan.tensor_parts, SourceOfPlan(options)};
}

namespace {

absl::StatusOr<PreparedRun> ChooseAny(const RunConfig& given, ModelSource model) {
  ASSIGN_OR_RETURN(const RunConfig options, WithCluster(given));
  if (HasPlan(options)) return TakeGivenPlan(options, model);
  if (options.devices_left.has_value()) {
    if (!schedule::IsScheduleFile(options.schedule)) return ChooseForDevicesLeft(options, model);
    RunConfig other = options;
    other.stages.reset();
    ASSIGN_OR_RETURN(const PlanOptions plan, PlanOptionsOf(other));
    if (plan.all_devices() != *options.devices_left) {
      other.schedule = "1f1b";
      other.micro_batches = plan.micro_batches;
      return ChooseForDevicesLeft(other, model);
    }
  }
  ASSIGN_OR_RETURN(PlanOptions plan, PlanOptionsOf(options));
  ASSIGN_OR_RETURN(plan.device, ChooseDevices(options, plan.all_devices()));
  plan.exchange = ExchangeOf(options.device, plan.device);
  // Among processes, all must choose alike, wherever they are.
  if (!options.is_process()) plan.cores = CoresFor(plan.device);
  ASSIGN_OR_RETURN(const PlannedModel planned, model(options.batch));
  if (!options.batch.has_value()) {
    plan.micro_batch_rows = DefaultBatch(planned.rows, plan.micro_batches) / plan.micro_batches;
  }
  plan.optimizer = planned.optimizer;
  LimitDevices(options, planned.model, plan);
  return CutModel(options, planned.model, plan);
}

// Checks what each device moves to the host against the limit of the run, if it has one.
absl::Status CheckHostMemory(const RunConfig& options, const PreparedRun& run) {
  if (options.host_memory_bytes == 0) return absl::OkStatus();
  for (size_t rank = 0; rank < run.compiled.ranks.size(); ++rank) {
    const int64_t bytes = run.compiled.ranks[rank].training.host_bytes();
    if (bytes <= options.host_memory_bytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank, " takes up to ", base::FormatBytes(bytes), " of host memory for ",
        DescribeHostContents(run.plan()), ", and --host-memory allows ",
        base::FormatBytes(options.host_memory_bytes),
        run.plan().offload > 0 ? ": move a smaller share (--offload), or use smaller micro-batches"
                               : ""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreparedRun> ChoosePlan(const RunConfig& given, ModelSource model) {
  ASSIGN_OR_RETURN(PreparedRun run, ChooseAny(given, model));
  RETURN_IF_ERROR(CheckHostMemory(given, run));
  return run;
}

absl::Status CheckPlanFlags(const RunConfig& given) {
  ASSIGN_OR_RETURN(const RunConfig options, WithCluster(given));
  return HasPlan(options) ? TakePlan(options).status() : PlanOptionsOf(options).status();
}

}  // namespace stagecoach::engine
