#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/report.h"

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
      devices.push_back({{"device", device.device},
                         {"stage", device.stage},
                         {"layers", {device.first_layer, device.last_layer}},
                         {"parameters", device.parameters},
                         {"predicted_peak_bytes", device.predicted_peak_bytes},
                         {"measured_peak_bytes", device.measured_peak_bytes},
                         {"peak_stashed", device.peak_stashed},
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
  ordered_json stages = ordered_json::array();
  for (size_t stage = 0; stage < run.stages.size(); ++stage) {
    const partition::StageReport& report = run.stages[stage];
    const schedule::StageMemory& memory = report.memory;
    const int64_t peak = report.memory_plan.peak_bytes();
    const int64_t stash = report.memory_plan.peak_stash_bytes;
    const int64_t named =
        memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes + stash;
    stages.push_back({{"stage", stage},
                      {"first_layer", report.first_layer},
                      {"last_layer", report.last_layer},
                      {"parameters", report.parameters},
                      {"time_share", report.time_share},
                      {"predicted_peak_bytes", peak},
                      {"memory",
                       {{"parameters", memory.parameter_bytes},
                        {"gradients", memory.gradient_bytes},
                        {"optimizer", memory.optimizer_bytes},
                        {"stash", stash},
                        {"buffers", peak - named}}}});
  }
  return {{"schedule", run.plan.schedule},
          {"micro_batches", run.plan.micro_batches},
          {"micro_batch_rows", run.plan.micro_batch_rows},
          {"stages", std::move(stages)}};
}

}  // namespace stagecoach::tools
