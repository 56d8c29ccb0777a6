#include "partition/plan.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text_table.h"
#include "base/units.h"
#include "partition/stage_peaks.h"
#include "schedule/generators.h"
#include "schedule/lowering.h"
#include "schedule/validator.h"

namespace stagecoach::partition {

absl::Status CheckPlan(const Plan& plan) {
  if (plan.micro_batches < 1 || plan.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a plan with %d micro-batches of %d rows: expected at least 1 of each",
                        plan.micro_batches, plan.micro_batch_rows));
  }
  if (plan.first_layer.empty() || plan.first(0) != 0) {
    return absl::InvalidArgumentError("a plan's first stage must begin with layer 0");
  }
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (plan.last(stage) < plan.first(stage) || plan.last(stage) >= plan.num_layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "stage %d of the plan has layers %d to %d of %d: expected each stage to begin after the "
          "one before it, and to have a layer",
          stage, plan.first(stage), plan.last(stage), plan.num_layers));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<schedule::Schedule> LoweredSchedule(const Plan& plan) {
  RETURN_IF_ERROR(CheckPlan(plan));
  const schedule::ScheduleShape shape = {.ranks = plan.num_stages(),
                                         .micro_batches = plan.micro_batches};
  absl::StatusOr<schedule::Schedule> compute = schedule::Generate(plan.schedule, shape);
  if (absl::IsNotFound(compute.status())) {
    return absl::InvalidArgumentError(compute.status().message());
  }
  RETURN_IF_ERROR(compute.status());
  ASSIGN_OR_RETURN(schedule::Schedule lowered, schedule::Lower(*compute));
  RETURN_IF_ERROR(schedule::Validate(lowered));
  return lowered;
}

absl::StatusOr<std::vector<StageReport>> ReportPlan(const Plan& plan,
                                                    const std::vector<LayerCost>& layers,
                                                    const LossMemory& loss) {
  ASSIGN_OR_RETURN(schedule::Schedule lowered, LoweredSchedule(plan));
  if (plan.num_layers != static_cast<int>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, layers.size()));
  }
  RETURN_IF_ERROR(CheckLayers(layers));
  StagePeaks peaks(layers, loss, std::move(lowered));
  std::vector<StageReport> reports;
  double batch_ns = 0;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    StageReport report;
    report.first_layer = plan.first(stage);
    report.last_layer = plan.last(stage);
    double stage_ns = 0;
    for (int layer = report.first_layer; layer <= report.last_layer; ++layer) {
      report.parameters += layers[layer].parameters;
      stage_ns += layers[layer].batch_ns(plan.micro_batches);
    }
    report.time_share = stage_ns;
    batch_ns += stage_ns;
    const StageRange range = {report.first_layer, report.last_layer, stage};
    report.memory = peaks.Memory(range);
    ASSIGN_OR_RETURN(report.memory_plan, peaks.PlanRange(range));
    reports.push_back(std::move(report));
  }
  for (StageReport& report : reports) {
    report.time_share = batch_ns > 0 ? report.time_share / batch_ns : 1.0 / plan.num_stages();
  }
  return reports;
}

std::string PlanTable(const std::vector<StageReport>& reports) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"stage", Align::kRight},
                         {"layers", Align::kLeft},
                         {"parameters", Align::kRight},
                         {"time", Align::kRight},
                         {"weights", Align::kRight},
                         {"gradients", Align::kRight},
                         {"optimiser", Align::kRight},
                         {"stash", Align::kRight},
                         {"buffers", Align::kRight},
                         {"peak", Align::kRight}});
  for (size_t stage = 0; stage < reports.size(); ++stage) {
    const StageReport& report = reports[stage];
    const schedule::StageMemory& memory = report.memory;
    const int64_t peak_bytes = report.memory_plan.peak_bytes();
    const int64_t stash_bytes = report.memory_plan.peak_stash_bytes;
    const int64_t buffer_bytes = peak_bytes - memory.parameter_bytes - memory.gradient_bytes -
                                 memory.optimizer_bytes - stash_bytes;
    table.AddRow(
        {absl::StrCat(stage), absl::StrCat(report.first_layer, "-", report.last_layer),
         base::FormatCount(report.parameters), absl::StrFormat("%.1f %%", 100 * report.time_share),
         base::FormatBytes(memory.parameter_bytes), base::FormatBytes(memory.gradient_bytes),
         base::FormatBytes(memory.optimizer_bytes), base::FormatBytes(stash_bytes),
         base::FormatBytes(buffer_bytes), base::FormatBytes(peak_bytes)});
  }
  return table.ToString();
}

}  // namespace stagecoach::partition
