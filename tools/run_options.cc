#include "tools/run_options.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/data/load.h"
#include "engine/model_file.h"
#include "engine/profile.h"
#include "partition/automatic_schedule.h"
#include "partition/stage_costs.h"
#include "schedule/files/schedule_file.h"
#include "tools/exit_status.h"
#include "tools/schedule_option.h"

namespace stagecoach::tools {
namespace {

constexpr int kProfileRepeats = 5;

absl::StatusOr<engine::Optimizer> OptimizerOf(const RunOptions& options) {
  const bool is_sgd = options.optimizer == "sgd";
  if (options.momentum.has_value() && !is_sgd) {
    return absl::InvalidArgumentError("--momentum is for --optimizer sgd; adamw has none to set");
  }
  engine::Optimizer optimizer = is_sgd ? engine::Optimizer::Sgd() : engine::Optimizer::AdamW();
  optimizer.weight_decay = options.weight_decay.value_or(optimizer.weight_decay);
  optimizer.momentum = options.momentum.value_or(optimizer.momentum);
  optimizer.clip_norm = options.clip_norm;
  RETURN_IF_ERROR(CheckOptimizer(optimizer));
  return optimizer;
}

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

partition::ScheduleMaker ScheduleMakerOf(const RunOptions& options, const Pipeline& pipeline,
                                         const partition::PlanRequest& request) {
  if (options.schedule == kAutomatic) {
    return partition::AutomaticSchedule(request, pipeline.micro_batches, options.chunks);
  }
  if (!pipeline.from_file.has_value()) {
    return partition::GeneratedSchedule(options.schedule, pipeline.micro_batches, options.chunks);
  }
  return [given = *pipeline.from_file](int devices) -> absl::StatusOr<schedule::Schedule> {
    if (devices == given.num_ranks()) return given;
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule in the file is for ", given.num_ranks(), " devices"));
  };
}

absl::Status CutModel(const RunOptions& options, const Pipeline& pipeline, Run& run) {
  const engine::ProfileOptions profile_options = {
      .micro_batch_rows = options.batch / pipeline.micro_batches,
      .micro_batches = pipeline.micro_batches,
      .optimizer = run.optimizer,
      .threads = options.threads_per_device};
  ASSIGN_OR_RETURN(const engine::ModelProfile profile,
                   options.profile == "measured"
                       ? MeasureModel(run.model, profile_options, kProfileRepeats)
                       : AnalyzeModel(run.model, profile_options));
  partition::PlanRequest request = {.layers = profile.layers,
                                    .loss = profile.loss,
                                    .devices = pipeline.devices,
                                    .micro_batch_rows = profile_options.micro_batch_rows,
                                    .device_memory_bytes = options.device_memory_bytes};
  request.schedule = ScheduleMakerOf(options, pipeline, request);
  ASSIGN_OR_RETURN(run.plan, MakePlan(request));
  ASSIGN_OR_RETURN(run.predicted, ReportPlan(run.plan, profile.layers, profile.loss));
  run.costs = StageCosts(run.predicted, profile.layers);
  // With clipping, updates wait for the norm of all gradients.
  run.costs.steps_in_backward = run.optimizer.clip_norm == 0.0F;
  return absl::OkStatus();
}

}  // namespace

float LearningRateOf(const RunOptions& options) {
  constexpr float kSgd = 0.01F;
  constexpr float kAdamWMax = 1e-3F;
  constexpr float kAdamWTimesWidth = 4e-5F * 2304;  // tuned on the default network
  if (options.learning_rate.has_value()) return *options.learning_rate;
  if (options.optimizer == "sgd") return kSgd;
  if (!options.model_file.empty()) return kAdamWMax;
  return std::min(kAdamWMax, kAdamWTimesWidth / static_cast<float>(options.width));
}

absl::StatusOr<Run> PrepareRun(const RunOptions& options) {
  Run run;
  ASSIGN_OR_RETURN(run.optimizer, From(Origin::kUsage, OptimizerOf(options)));
  ASSIGN_OR_RETURN(const Pipeline pipeline, PipelineOf(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckBatch(options.batch, pipeline.micro_batches)));
  ASSIGN_OR_RETURN(run.data, From(Origin::kData, LoadRows(options)));
  ASSIGN_OR_RETURN(run.model, From(Origin::kConfiguration, MakeModel(options, *run.data.train)));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CutModel(options, pipeline, run)));
  return run;
}

}  // namespace stagecoach::tools
