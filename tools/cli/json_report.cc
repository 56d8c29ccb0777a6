#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/cli/report.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

// At once, so that a reader at the other end of a pipe follows the run.
void PrintLine(const ordered_json& value) {
  absl::PrintF("%s\n", value.dump());
  std::fflush(stdout);
}

class JsonReport final : public Report {
 public:
  void Start(const Run& run) override {
    ordered_json event = {{"event", "plan"}};
    event.update(PlanToJson(run));
    PrintLine(event);
  }

  void Step(const engine::FitProgress&) override {}

  void Epoch(const engine::EpochResult& result) override {
    PrintLine({{"event", "epoch"},
               {"epoch", result.epoch},
               {"loss", result.loss},
               {"train_accuracy", result.train_accuracy},
               {"test_accuracy", result.test_accuracy},
               {"test_loss", result.test_loss},
               {"samples_per_second", result.samples_per_second}});
  }

  void End(const Outcome& outcome) override {
    ordered_json devices = ordered_json::array();
    for (const engine::DeviceReport& device : outcome.devices) {
      ordered_json stages = ordered_json::array();
      for (const engine::StageSummary& stage : device.stages) {
        stages.push_back({{"stage", stage.stage},
                          {"layers", {stage.first_layer, stage.last_layer}},
                          {"parameters", stage.parameters}});
      }
      // For a device with one stage, "stage" and "layers" are enough.
      const engine::StageSummary& first = device.stages.front();
      int64_t parameters = 0;
      for (const engine::StageSummary& stage : device.stages) parameters += stage.parameters;
      devices.push_back({{"device", device.device},
                         {"stage", first.stage},
                         {"layers", {first.first_layer, first.last_layer}},
                         {"parameters", parameters},
                         {"stages", std::move(stages)},
                         {"predicted_peak_bytes", device.predicted_peak_bytes},
                         {"measured_peak_bytes", device.measured_peak_bytes},
                         {"overhead_bytes", device.overhead_bytes},
                         {"peak_stashed", device.peak_stashed},
                         {"predicted_stash_bytes", device.predicted_stash_bytes},
                         {"measured_stash_bytes", device.measured_stash_bytes},
                         {"busy", device.busy}});
    }
    PrintLine({{"event", "end"},
               {"step_losses_hash", outcome.fit.step_losses_hash},
               {"parameters_hash", outcome.parameters_hash},
               {"epochs", outcome.fit.epochs},
               {"steps", outcome.fit.steps},
               {"stopped", outcome.fit.stopped},
               {"seconds", absl::ToDoubleSeconds(outcome.elapsed)},
               {"devices", std::move(devices)}});
  }
};

}  // namespace

std::unique_ptr<Report> MakeJsonReport() { return std::make_unique<JsonReport>(); }

ordered_json PlanToJson(const Run& run) {
  const partition::PlanReport& predicted = run.predicted;
  ordered_json stages = ordered_json::array();
  for (size_t stage = 0; stage < predicted.stages.size(); ++stage) {
    const partition::StageReport& report = predicted.stages[stage];
    const partition::RankReport& device = predicted.of(report.rank);
    stages.push_back({{"stage", stage},
                      {"device", report.rank.value()},
                      {"first_layer", report.first_layer},
                      {"last_layer", report.last_layer},
                      {"parameters", report.parameters},
                      {"time_share", report.time_share},
                      {"predicted_peak_bytes", device.peak_bytes()},
                      {"memory",
                       {{"parameters", report.memory.parameter_bytes},
                        {"gradients", report.memory.gradient_bytes},
                        {"optimizer", report.memory.optimizer_bytes},
                        {"stash", device.training.peak_stash_bytes},
                        {"buffers", BufferBytes(predicted, report.rank)}}}});
  }
  ordered_json devices = ordered_json::array();
  for (size_t device = 0; device < predicted.ranks.size(); ++device) {
    const partition::RankReport& report = predicted.ranks[device];
    ordered_json own = ordered_json::array();
    int64_t weights = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;
    for (const schedule::StageId stage : report.stages) {
      const schedule::StageMemory& memory = predicted.of(stage).memory;
      own.push_back(stage.value());
      weights += memory.parameter_bytes;
      gradients += memory.gradient_bytes;
      optimizer += memory.optimizer_bytes;
    }
    const schedule::Rank rank(static_cast<int32_t>(device));
    devices.push_back({{"device", device},
                       {"stages", std::move(own)},
                       {"predicted_peak_bytes", report.peak_bytes()},
                       {"memory",
                        {{"parameters", weights},
                         {"gradients", gradients},
                         {"optimizer", optimizer},
                         {"stash", report.training.peak_stash_bytes},
                         {"buffers", BufferBytes(predicted, rank)}}}});
  }
  return {{"schedule", run.plan.schedule.name},
          {"micro_batches", run.plan.micro_batches()},
          {"micro_batch_rows", run.plan.micro_batch_rows},
          {"stages", std::move(stages)},
          {"devices", std::move(devices)}};
}

}  // namespace stagecoach::tools
