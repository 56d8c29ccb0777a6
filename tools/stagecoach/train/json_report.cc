#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/stagecoach/terminal/explanation.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/train/report.h"
#include "tools/stagecoach/train/run_events.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

ordered_json SentToJson(const partition::SentBytes& sent) {
  return {
      {"to_ranks", sent.to_ranks}, {"to_replicas", sent.to_replicas}, {"to_parts", sent.to_parts}};
}

// Returns the plan in the event "plan" of a run. In an entry of its "stages", stash, buffers and
// peak are those of the stage's device.
ordered_json PlanToJson(const engine::PreparedRun& prepared) {
  const partition::CompiledPlan& predicted = prepared.compiled;
  ordered_json stages = ordered_json::array();
  for (size_t stage = 0; stage < predicted.stages.size(); ++stage) {
    const partition::StageReport& report = predicted.stages[stage];
    const partition::RankReport& device = predicted.of(report.rank);
    stages.push_back({{"stage", stage},
                      {"device", prepared.plan().first_device_of(report.rank)},
                      {"first_layer", report.first_layer},
                      {"last_layer", report.last_layer},
                      {"parameters", report.parameters},
                      {"time_share", report.time_share},
                      {"predicted_peak_bytes", device.peak_bytes()},
                      {"memory_bytes",
                       {{"parameters", report.memory.parameter_bytes + report.memory.frozen_bytes},
                        {"gradients", report.memory.gradient_bytes},
                        {"optimizer", report.memory.optimizer_bytes},
                        {"stash", device.training.peak_stash_bytes},
                        {"buffers", BufferBytes(predicted, report.rank)}}}});
  }
  ordered_json devices = ordered_json::array();
  for (int device = 0; device < prepared.plan().num_devices(); ++device) {
    const schedule::Rank rank(device / prepared.plan().devices_of_rank());
    const partition::RankReport& report = predicted.of(rank);
    ordered_json own = ordered_json::array();
    int64_t weights = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;
    for (const schedule::StageId stage : report.stages) {
      const schedule::StageMemory& memory = predicted.of(stage).memory;
      own.push_back(stage.value());
      weights += memory.parameter_bytes + memory.frozen_bytes;
      gradients += memory.gradient_bytes;
      optimizer += memory.optimizer_bytes;
    }
    devices.push_back(
        {{"device", device},
         {"replica", device / prepared.plan().tensor_parts % prepared.plan().replicas()},
         {"part", device % prepared.plan().tensor_parts},
         {"stages", std::move(own)},
         {"predicted_peak_bytes", report.peak_bytes()},
         {"memory_bytes",
          {{"parameters", weights},
           {"gradients", gradients},
           {"optimizer", optimizer},
           {"stash", report.training.peak_stash_bytes},
           {"buffers", BufferBytes(predicted, rank)}}},
         {"predicted_host_bytes", report.training.host_bytes()}});
  }
  return {{"schedule", prepared.plan().schedule.name},
          {"micro_batches", prepared.plan().micro_batches()},
          {"micro_batch_rows", prepared.plan().micro_batch_rows},
          {"replicas", prepared.plan().replicas()},
          {"tensor_parallel", prepared.plan().tensor_parts},
          {"gradient_blocks", prepared.plan().replication.gradient_blocks},
          {"shard_optimizer", prepared.plan().replication.shards_optimizer},
          {"reduction", partition::Name(prepared.plan().replication.reduction)},
          {"recomputed_layers", prepared.plan().recomputed},
          {"offload", prepared.plan().offload},
          {"offload_optimizer", prepared.plan().replication.offloads_optimizer},
          {"stages", std::move(stages)},
          {"devices", std::move(devices)}};
}

// Returns what the device of a rank held and did.
ordered_json DeviceToJson(const partition::CompiledPlan& plan, size_t index,
                          const engine::DeviceReport& device) {
  const auto number = static_cast<int>(index);
  const schedule::Rank rank(number / plan.plan.devices_of_rank());
  const std::vector<schedule::StageId>& ids = plan.of(rank).stages;
  ordered_json stages = ordered_json::array();
  int64_t parameters = 0;
  for (const schedule::StageId id : ids) {
    const partition::StageReport& stage = plan.of(id);
    stages.push_back({{"stage", id.value()},
                      {"first_layer", stage.first_layer},
                      {"last_layer", stage.last_layer},
                      {"parameters", stage.parameters}});
    parameters += stage.parameters;
  }
  ordered_json json = {{"device", device.device},
                       {"replica", number / plan.plan.tensor_parts % plan.plan.replicas()},
                       {"part", number % plan.plan.tensor_parts},
                       {"parameters", parameters},
                       {"stages", std::move(stages)},
                       {"predicted_peak_bytes", device.predicted_peak_bytes},
                       {"measured_peak_bytes", device.measured_peak_bytes},
                       {"peak_stashed", device.peak_stashed},
                       {"predicted_stash_bytes", device.predicted_stash_bytes},
                       {"measured_stash_bytes", device.measured_stash_bytes},
                       {"predicted_host_bytes", device.predicted_host_bytes},
                       {"measured_host_bytes", device.measured_host_bytes},
                       {"predicted_sent_bytes", SentToJson(device.predicted_sent)},
                       {"measured_sent_bytes", SentToJson(device.measured_sent)},
                       {"busy", device.busy}};
  if (device.accelerator != kernels::AcceleratorMemory()) {
    json["accelerator"] = {{"allocated_bytes", device.accelerator.allocated_bytes},
                           {"context_bytes", device.accelerator.context_bytes},
                           {"library_bytes", device.accelerator.library_bytes}};
  }
  if (device.graph_issues + device.plain_issues > 0) {  // The device is an accelerator.
    json["graphs"] = {{"captured", device.graphs},
                      {"replayed", device.graph_issues},
                      {"plain", device.plain_issues},
                      {"why_plain", device.why_plain}};
  }
  return json;
}

ordered_json ExplanationToJson(const Explanation& explanation) {
  ordered_json rows = ordered_json::array();
  for (const Explanation::Row& row : explanation.rows) {
    rows.push_back({{"step", row.step}, {"shapes", row.shapes}, {"note", row.note}});
  }
  return {{"event", "shapes"}, {"summary", explanation.summary}, {"rows", std::move(rows)}};
}

class JsonReport final : public engine::TrainingObserver {
 public:
  explicit JsonReport(const ReportOptions& options) : options_(options) {}

  absl::Status Start(const engine::RunConfig& config, const engine::TrainingRun& run) override {
    is_one_process_ = !config.is_process();
    ordered_json event = {{"event", "plan"}};
    event["rows"] = {{"train", run.data.train->rows()},
                     {"left_over", run.rows_left_over()},
                     {"test", run.data.test->rows()}};
    event.update(PlanToJson(run.prepared));
    if (!run.prepared.choice.empty()) event["choice"] = run.prepared.choice;
    measures_ = Measures::Of(*run.data.train, run.prepared.profile.loss_spec, run.data.encoding);
    Print(event);
    if (options_.explains) Print(ExplanationToJson(ExplainStep(run.prepared)));
    return absl::OkStatus();
  }

  void Step(const engine::FitProgress& progress) override {
    if (options_.Logs(progress.run_step)) Print(StepEvent(progress, measures_));
    if (progress.step_result.skipped_for.empty()) return;
    Print({{"event", "skipped"},
           {"epoch", progress.epoch},
           {"step_of_epoch", progress.step},
           {"reason", progress.step_result.skipped_for}});
  }

  void Epoch(const engine::EpochResult& result) override {
    if (result.samples_per_second > 0) samples_per_second_ = result.samples_per_second;
    Print(EvaluationEvent("epoch", result, measures_));
  }
  void Evaluation(const engine::EpochResult& result) override {
    if (result.samples_per_second > 0) samples_per_second_ = result.samples_per_second;
    Print(EvaluationEvent("evaluation", result, measures_));
  }

  void Answers(const engine::EpochResult& result,
               const std::vector<engine::SampledAnswer>& answers) override {
    for (size_t i = 0; i < answers.size(); ++i) Print(AnswerEvent(result, i, answers[i]));
  }

  void Resumed(const engine::RestoredCheckpoint& checkpoint) override {
    Print({{"event", "resumed"},
           {"checkpoint", checkpoint.path},
           {"step", checkpoint.manifest.step},
           {"epoch", checkpoint.manifest.position.epoch}});
  }

  void OnRecovered(int64_t steps, int epoch) override {
    Print({{"event", "resumed"}, {"from", "replicas"}, {"step", steps}, {"epoch", epoch}});
  }

  void Saved(const engine::SaveReport& save) override {
    ordered_json event = {{"event", "checkpoint"}, {"step", save.step}};
    if (save.path.ok()) {
      event["checkpoint"] = *save.path;
    } else {
      event["error"] = std::string(save.path.status().message());
    }
    event["blocked_seconds"] = absl::ToDoubleSeconds(save.blocked);
    Print(event);
  }

  void End(const engine::TrainingRun& run, const engine::TrainingOutcome& outcome) override {
    ordered_json devices = ordered_json::array();
    for (size_t i = 0; i < outcome.devices.size(); ++i) {
      devices.push_back(DeviceToJson(run.prepared.compiled, i, outcome.devices[i]));
    }
    ordered_json event = {{"event", "end"},
                          {"step_losses_hash", outcome.fit.step_losses_hash},
                          {"parameters_hash", outcome.parameters_hash},
                          {"epochs", outcome.fit.epochs},
                          {"steps", outcome.fit.steps},
                          {"skipped_steps", outcome.fit.skipped_steps},
                          {"stopped", outcome.fit.stopped}};
    if (outcome.stop_when.has_value()) {
      event["stop_when"] = {{"condition", outcome.stop_when->text},
                            {"met", outcome.fit.condition_met}};
      if (outcome.fit.metrics.has_value()) {
        event["stop_when"]["value"] = outcome.stop_when->ValueIn(*outcome.fit.metrics);
      }
    }
    if (outcome.fit.out_of_patience) event["out_of_patience"] = true;
    if (outcome.fit.best.has_value()) event["best_" + outcome.fit.best_by] = *outcome.fit.best;
    event["seconds"] = absl::ToDoubleSeconds(outcome.elapsed);
    const Speed speed = Speed::Of(run, samples_per_second_, options_.is_verbose && is_one_process_);
    if (speed.flops_per_second > 0) event["flops_per_second"] = speed.flops_per_second;
    if (speed.mfu > 0) event["mfu"] = speed.mfu;
    event["devices"] = std::move(devices);
    Print(event);
  }

 private:
  static void Print(const ordered_json& event) { PrintJsonLine(Timed(event)); }

  const ReportOptions options_;
  Measures measures_;
  double samples_per_second_ = 0;  // of the last epoch
  bool is_one_process_ = false;
};

}  // namespace

std::unique_ptr<engine::TrainingObserver> MakeJsonReport(const ReportOptions& options) {
  return std::make_unique<JsonReport>(options);
}

}  // namespace stagecoach::tools
