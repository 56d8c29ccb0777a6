// The reports of partition/plan.h.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text_table.h"
#include "base/units.h"
#include "partition/plan.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;
using schedule::StageMemory;

// What a rank's stages keep besides their results and tables, which count as buffers.
int64_t NamedResidentBytes(const PlanReport& report, const RankReport& rank) {
  int64_t bytes = 0;
  for (const StageId stage : rank.stages) {
    const StageMemory& memory = report.of(stage).memory;
    bytes += memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes;
  }
  return bytes;
}

}  // namespace

int64_t BufferBytes(const PlanReport& report, Rank rank) {
  const RankReport& own = report.of(rank);
  return own.peak_bytes() - own.training.peak_stash_bytes - NamedResidentBytes(report, own);
}

absl::StatusOr<PlanReport> ReportPlan(const Plan& plan, const std::vector<LayerCost>& layers,
                                      const LossMemory& loss) {
  ASSIGN_OR_RETURN(const Schedule training, LoweredSchedule(plan));
  ASSIGN_OR_RETURN(const Schedule evaluation, LoweredEvaluation(plan));
  if (plan.num_layers != static_cast<int>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, layers.size()));
  }
  RETURN_IF_ERROR(CheckLayers(layers));
  PlanReport report;
  std::vector<StageMemory> memory;
  double batch_ns = 0;
  for (int index = 0; index < plan.num_stages(); ++index) {
    const StageId id(index);
    StageReport stage = {.rank = training.rank_of(id),
                         .first_layer = plan.first(index),
                         .last_layer = plan.last(index)};
    const auto range = absl::MakeConstSpan(layers).subspan(
        stage.first_layer, stage.last_layer - stage.first_layer + 1);
    for (const LayerCost& layer : range) {
      stage.parameters += layer.parameters;
      stage.time_share += layer.batch_ns(plan.micro_batches());
    }
    batch_ns += stage.time_share;
    stage.memory = AggregateStage(range, loss, PositionOf(training, id));
    memory.push_back(stage.memory);
    report.stages.push_back(std::move(stage));
  }
  for (StageReport& stage : report.stages) {
    stage.time_share = batch_ns > 0 ? stage.time_share / batch_ns : 1.0 / plan.num_stages();
  }
  for (Rank rank(0); rank.value() < training.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(RankReport own, ReportRank(training, evaluation, rank, memory));
    report.ranks.push_back(std::move(own));
  }
  return report;
}

std::string PlanTable(const PlanReport& report) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"device", Align::kRight},
                         {"stage", Align::kRight},
                         {"layers", Align::kLeft},
                         {"time", Align::kRight},
                         {"weights", Align::kRight},
                         {"gradients", Align::kRight},
                         {"optimiser", Align::kRight},
                         {"stash", Align::kRight},
                         {"buffers", Align::kRight},
                         {"peak", Align::kRight}});
  for (Rank rank(0); rank.value() < static_cast<int>(report.ranks.size()); ++rank) {
    const RankReport& own = report.of(rank);
    for (const StageId id : own.stages) {
      const StageReport& stage = report.of(id);
      std::vector<std::string> cells = {"",
                                        absl::StrCat(id.value()),
                                        absl::StrCat(stage.first_layer, "-", stage.last_layer),
                                        absl::StrFormat("%.1f %%", 100 * stage.time_share),
                                        base::FormatBytes(stage.memory.parameter_bytes),
                                        base::FormatBytes(stage.memory.gradient_bytes),
                                        base::FormatBytes(stage.memory.optimizer_bytes),
                                        "",
                                        "",
                                        ""};
      if (id == own.stages.front()) {
        cells[0] = absl::StrCat(rank.value());
        cells[7] = base::FormatBytes(own.training.peak_stash_bytes);
        cells[8] = base::FormatBytes(BufferBytes(report, rank));
        cells[9] = base::FormatBytes(own.peak_bytes());
      }
      table.AddRow(std::move(cells));
    }
  }
  return table.ToString();
}

}  // namespace stagecoach::partition
