#include "tools/cli/run_options.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/data/load.h"
#include "engine/model/model_file.h"
#include "engine/stage/profile.h"
#include "engine/train/measured_profile.h"
#include "engine/train/trainer.h"
#include "partition/files/plan_file.h"
#include "partition/plan/receipt.h"
#include "partition/plan/stage_costs.h"
#include "partition/search/make_plan.h"
#include "partition/search/planner.h"
#include "schedule/files/schedule_file.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/machine.h"
#include "tools/cli/schedule_option.h"

namespace stagecoach::tools {
namespace {

absl::StatusOr<engine::Optimizer> OptimizerOf(const RunOptions& options) {
  const bool is_sgd = options.optimizer == "sgd";
  if (options.momentum.has_value() && !is_sgd) {
    return absl::InvalidArgumentError(
        "--momentum is for --optimizer sgd; adamw has no momentum to set");
  }
  engine::Optimizer optimizer = is_sgd ? engine::Optimizer::Sgd() : engine::Optimizer::AdamW();
  optimizer.weight_decay = options.weight_decay.value_or(optimizer.weight_decay);
  optimizer.momentum = options.momentum.value_or(optimizer.momentum);
  optimizer.clip_norm = options.clip_norm;
  RETURN_IF_ERROR(CheckOptimizer(optimizer));
  return optimizer;
}

bool HoldsImages(const std::string& data) {
  return !absl::StartsWith(data, "synthetic:") && !absl::EndsWith(data, ".csv");
}

absl::StatusOr<engine::TrainTest> LoadRows(const RunOptions& options) {
  ASSIGN_OR_RETURN(engine::TrainTest data, engine::LoadData({.spec = options.data,
                                                             .label_column = options.label,
                                                             .train_rows = options.rows.value_or(0),
                                                             .seed = options.seed}));
  if (!options.rows.has_value() && HoldsImages(options.data)) {
    const int64_t rows = std::min(kDefaultImageRows, data.train->rows());
    ASSIGN_OR_RETURN(data.train, engine::Subset(std::move(data.train), rows));
  }
  return data;
}

absl::Status CheckRows(const engine::Dataset& train, int64_t batch_rows) {
  if (train.rows() >= batch_rows) return absl::OkStatus();
  return From(Origin::kConfiguration,
              absl::InvalidArgumentError(absl::StrCat("the training data has ", train.rows(),
                                                      " rows, less than one batch of ", batch_rows,
                                                      ": use more rows or a smaller batch")));
}

absl::StatusOr<engine::Model> MakeModel(const RunOptions& options, const engine::Dataset& data) {
  if (!options.model_file.empty()) {
    return engine::ReadModelFile(options.model_file, data.features(), data.classes());
  }
  return engine::DefaultNetwork(data.features(), data.classes(), options.layers, options.width);
}

// How many devices and micro-batches there are, and what makes the order of work on them.
struct Pipeline {
  int devices = kDefaultStages;
  int micro_batches = kDefaultMicroBatches;
  std::optional<schedule::Schedule> from_file;
};

absl::StatusOr<Pipeline> PipelineOf(const RunOptions& options) {
  Pipeline pipeline;
  if (!schedule::IsScheduleFile(options.schedule)) {
    pipeline.devices = options.stages.value_or(kDefaultStages);
    pipeline.micro_batches = options.micro_batches.value_or(kDefaultMicroBatches);
    return pipeline;
  }
  ASSIGN_OR_RETURN(pipeline.from_file,
                   ReadScheduleOption(options.schedule, {.stages = options.stages,
                                                         .micro_batches = options.micro_batches,
                                                         .chunks = options.chunks}));
  pipeline.devices = pipeline.from_file->num_ranks();
  pipeline.micro_batches = pipeline.from_file->num_micro_batches;
  return pipeline;
}

partition::ScheduleMaker ScheduleMakerOf(const RunOptions& options, const Pipeline& pipeline) {
  if (!pipeline.from_file.has_value()) {
    return partition::GeneratedSchedule(options.schedule, pipeline.micro_batches, options.chunks);
  }
  return [given = *pipeline.from_file](int devices) -> absl::StatusOr<schedule::Schedule> {
    if (devices == given.num_ranks()) return given;
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule in the file is for ", given.num_ranks(), " devices"));
  };
}

absl::Status ChooseDevices(const RunOptions& options, int devices, Run& run) {
  ASSIGN_OR_RETURN(run.device, Resolve(options.device, devices));
  run.device.memory_bytes = options.device_memory_bytes;
  run.transfers = engine::TransfersOf(
      {.ranks = devices, .device = run.device, .exchange = ExchangeOf(options.device, run.device)});
  return absl::OkStatus();
}

// What the run takes, its model being of this profile.
absl::Status Predict(const engine::ModelProfile& profile, Run& run) {
  ASSIGN_OR_RETURN(run.predicted,
                   ReportPlan(run.plan, profile.layers, profile.loss, run.transfers));
  run.costs = StageCosts(run.predicted, profile.layers);
  run.loss_of_guessing = profile.loss_spec.loss_of_guessing;
  run.costs.steps_in_backward = UpdatesInBackward(run.optimizer, run.device.kind);
  return absl::OkStatus();
}

absl::Status CheckBudget(const Run& run, int64_t device_memory_bytes) {
  if (device_memory_bytes == 0) return absl::OkStatus();
  const std::vector<partition::RankReport>& ranks = run.predicted.ranks;
  // The one that needs most: a budget that suffices for it suffices for all.
  const auto largest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const auto& a, const auto& b) { return a.peak_bytes() < b.peak_bytes(); });
  if (largest->peak_bytes() <= device_memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan does not fit: ",
                   partition::Excess(absl::StrCat(largest - ranks.begin()), largest->peak_bytes(),
                                     device_memory_bytes),
                   "\n", PlanTable(run.predicted)));
}

absl::StatusOr<partition::Plan> ReadPlan(const std::string& path) {
  ASSIGN_OR_RETURN(partition::PlanFile file, From(Origin::kData, partition::ReadPlanFile(path)));
  // The model's own order, spelled out.
  if (std::is_sorted(file.plan.order.begin(), file.plan.order.end())) file.plan.order.clear();
  const absl::Status supported = engine::CheckSupported(file.plan);
  if (!supported.ok()) return From(Origin::kConfiguration, base::Annotate(supported, path));
  return std::move(file.plan);
}

absl::Status UsePlan(const RunOptions& options, partition::Plan plan, Run& run) {
  run.plan = std::move(plan);
  if (run.plan.num_layers != run.model.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the plan is for %d layers, the model has %d", options.plan_file,
                        run.plan.num_layers, run.model.num_layers()));
  }
  ASSIGN_OR_RETURN(
      const engine::ModelProfile profile,
      OnDevices(run.device, AnalyzeModel(run.model, {.micro_batch_rows = run.plan.micro_batch_rows,
                                                     .micro_batches = run.plan.micro_batches(),
                                                     .optimizer = run.optimizer,
                                                     .device = run.device})));
  RETURN_IF_ERROR(Predict(profile, run));
  return CheckBudget(run, options.device_memory_bytes);
}

// The fastest plan with any schedule, the number of micro-batches being given.
absl::StatusOr<partition::Plan> SearchPlan(const RunOptions& options, const Pipeline& pipeline,
                                           const engine::ModelProfile& profile,
                                           schedule::Transfers transfers) {
  partition::PlannerRequest request;
  request.profile = engine::JoinProfiles("", {profile});
  request.cluster = partition::UniformCluster(pipeline.devices, options.device_memory_bytes);
  request.cluster.transfers = transfers;
  request.batch_rows = options.batch;
  request.micro_batches = pipeline.micro_batches;
  if (options.chunks > 0) request.chunks = options.chunks;
  ASSIGN_OR_RETURN(partition::Receipt receipt, PlanJointly(request));
  return std::move(receipt.plan);
}

absl::Status CutModel(const RunOptions& options, const Pipeline& pipeline, Run& run) {
  const engine::ProfileOptions profile_options = {
      .micro_batch_rows = options.batch / pipeline.micro_batches,
      .micro_batches = pipeline.micro_batches,
      .optimizer = run.optimizer,
      .device = run.device};
  ASSIGN_OR_RETURN(engine::ModelProfile profile,
                   OnDevices(run.device, AnalyzeModel(run.model, profile_options)));
  if (options.profile == "measured") {
    RETURN_IF_ERROR(CheckCanMeasure(profile.layers, run.device));
    const int devices = DevicesAtOnce(pipeline.devices, run.device);
    ASSIGN_OR_RETURN(profile, OnDevices(run.device, MeasureModel(run.model, profile_options,
                                                                 {.devices = devices})));
  }
  if (options.schedule == kAutomatic) {
    ASSIGN_OR_RETURN(run.plan, SearchPlan(options, pipeline, profile, run.transfers));
    return Predict(profile, run);
  }
  partition::PlanRequest request = {.layers = profile.layers,
                                    .loss = profile.loss,
                                    .devices = pipeline.devices,
                                    .micro_batch_rows = profile_options.micro_batch_rows,
                                    .device_memory_bytes = options.device_memory_bytes,
                                    .transfers = run.transfers};
  request.schedule = ScheduleMakerOf(options, pipeline);
  ASSIGN_OR_RETURN(run.plan, MakePlan(request));
  return Predict(profile, run);
}

}  // namespace

absl::Status CheckBatch(int64_t batch, int64_t micro_batches) {
  if (micro_batches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--microbatches is ", micro_batches, ", expected at least 1"));
  }
  const int64_t rest = batch % micro_batches;
  if (rest == 0) return absl::OkStatus();
  const int64_t below = batch - rest;
  const int64_t above = below + micro_batches;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a batch of %d rows does not divide into %d equal micro-batches: use --batch %d", batch,
      micro_batches, below > 0 && rest <= micro_batches / 2 ? below : above));
}

int DevicesAtOnce(int devices, const engine::DeviceSpec& device) {
  if (device.kind != engine::DeviceKind::kCpu) return 1;
  return std::clamp(InspectMachine().processors / device.threads, 1, devices);
}

absl::Status CheckCanMeasure(const std::vector<partition::LayerCost>& layers,
                             const engine::DeviceSpec& device) {
  if (device.kind != engine::DeviceKind::kCpu) return absl::OkStatus();
  int64_t needed_bytes = 0;
  for (const partition::LayerCost& layer : layers) {
    needed_bytes += 2 * layer.memory.parameter_bytes + layer.memory.optimizer_bytes;
  }
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  if (memory_bytes == 0 || needed_bytes <= memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "to measure the layers, all are trained at once, which takes ",
      base::FormatBytes(needed_bytes), "; this machine has ", base::FormatBytes(memory_bytes),
      ": use estimated times, or measure a model of fewer layers"));
}

float LearningRateOf(const RunOptions& options) {
  constexpr float kSgd = 0.01F;
  constexpr float kAdamWMax = 1e-3F;
  constexpr float kAdamWTimesWidth = 4e-5F * 2304;  // tuned on the default network
  if (options.learning_rate.has_value()) return *options.learning_rate;
  if (options.optimizer == "sgd") return kSgd;
  if (!options.model_file.empty()) return kAdamWMax;
  return std::min(kAdamWMax, kAdamWTimesWidth / static_cast<float>(options.width));
}

absl::StatusOr<Workload> PrepareWorkload(const RunOptions& options) {
  Workload workload;
  ASSIGN_OR_RETURN(workload.optimizer, From(Origin::kUsage, OptimizerOf(options)));
  ASSIGN_OR_RETURN(workload.data, From(Origin::kData, LoadRows(options)));
  ASSIGN_OR_RETURN(workload.model,
                   From(Origin::kConfiguration, MakeModel(options, *workload.data.train)));
  return workload;
}

namespace {

// Before anything is created on GPUs, whose memory other programs may also use.
absl::Status CheckGpusHaveRoom(const RunOptions& options, const Run& run) {
  std::vector<int64_t> bytes(run.predicted.ranks.size());
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const bool is_here = !options.rank.has_value() || *options.rank == static_cast<int>(rank);
    if (is_here) bytes[rank] = run.predicted.ranks[rank].peak_bytes();
  }
  return CheckGpuMemory(run.device, bytes);
}

absl::StatusOr<Run> PrepareRunOnDevices(const RunOptions& options) {
  Run run;
  if (!options.plan_file.empty()) {
    ASSIGN_OR_RETURN(partition::Plan plan, ReadPlan(options.plan_file));
    RETURN_IF_ERROR(ChooseDevices(options, plan.num_ranks(), run));
    ASSIGN_OR_RETURN(static_cast<Workload&>(run), PrepareWorkload(options));
    RETURN_IF_ERROR(CheckRows(*run.data.train, plan.batch_rows()));
    RETURN_IF_ERROR(From(Origin::kConfiguration, UsePlan(options, std::move(plan), run)));
    RETURN_IF_ERROR(CheckGpusHaveRoom(options, run));
    return run;
  }
  ASSIGN_OR_RETURN(const Pipeline pipeline, PipelineOf(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckBatch(options.batch, pipeline.micro_batches)));
  RETURN_IF_ERROR(ChooseDevices(options, pipeline.devices, run));
  ASSIGN_OR_RETURN(static_cast<Workload&>(run), PrepareWorkload(options));
  RETURN_IF_ERROR(CheckRows(*run.data.train, options.batch));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CutModel(options, pipeline, run)));
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run));
  return run;
}

}  // namespace

absl::StatusOr<Run> PrepareRun(const RunOptions& options) {
  absl::StatusOr<Run> run = PrepareRunOnDevices(options);
  if (!absl::IsUnavailable(run.status())) return run;
  RETURN_IF_ERROR(FallBackToCpu(options.device, run.status()));
  RunOptions on_cpu = options;
  on_cpu.device.kind = "cpu";
  on_cpu.device.gpus.clear();
  on_cpu.device.exchange = "auto";
  return PrepareRunOnDevices(on_cpu);
}

}  // namespace stagecoach::tools
