// The reports of partition/plan/plan.h.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text_table.h"
#include "base/units.h"
#include "partition/plan/plan.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::StageId;
using schedule::StageMemory;

// Returns what a rank's stages keep except their results and tables, which count as buffers.
int64_t NamedResidentBytes(const PlanReport& report, const RankReport& rank) {
  int64_t bytes = 0;
  for (const StageId stage : rank.stages) {
    const StageMemory& memory = report.of(stage).memory;
    bytes += memory.parameter_bytes + memory.frozen_bytes + memory.gradient_bytes +
             memory.optimizer_bytes;
  }
  return bytes;
}

}  // namespace

int64_t BufferBytes(const PlanReport& report, Rank rank) {
  const RankReport& own = report.of(rank);
  return own.peak_bytes() - own.training.peak_stash_bytes - NamedResidentBytes(report, own);
}

absl::StatusOr<PlanReport> ReportPlan(const Plan& plan, const LoweredPlan& lowered,
                                      absl::Span<const LayerCost> layers,
                                      absl::Span<const StageMemory> memory) {
  PlanReport report;
  double batch_ns = 0;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto index = static_cast<size_t>(stage);
    StageReport own = {.rank = plan.schedule.rank_of(StageId(stage)),
                       .first_layer = plan.first(stage),
                       .last_layer = plan.last(stage),
                       .memory = memory[index]};
    for (int i = own.first_layer; i <= own.last_layer; ++i) {
      const LayerCost& layer = layers[static_cast<size_t>(i)];
      const bool is_done_again =
          std::binary_search(plan.recomputed.begin(), plan.recomputed.end(), i);
      own.parameters += layer.parameters;
      own.time_share += is_done_again ? Recomputed(layer).batch_ns(plan.schedule.num_micro_batches)
                                      : layer.batch_ns(plan.schedule.num_micro_batches);
    }
    batch_ns += own.time_share;
    report.stages.push_back(own);
  }
  for (StageReport& stage : report.stages) {
    stage.time_share = batch_ns > 0 ? stage.time_share / batch_ns : 1.0 / plan.num_stages();
  }
  ASSIGN_OR_RETURN(report.ranks,
                   ReportRanks(lowered.training, lowered.evaluation, memory, lowered.collectives));
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
                         {"optimizer", Align::kRight},
                         {"stash", Align::kRight},
                         {"buffers", Align::kRight},
                         {"peak", Align::kRight}});
  for (Rank rank(0); rank.value() < static_cast<int>(report.ranks.size()); ++rank) {
    const RankReport& own = report.of(rank);
    for (const StageId id : own.stages) {
      const StageReport& stage = report.of(id);
      std::vector<std::string> cells = {
          "",
          absl::StrCat(id.value()),
          absl::StrCat(stage.first_layer, "-", stage.last_layer),
          base::FormatPercent(stage.time_share),
          base::FormatBytes(stage.memory.parameter_bytes + stage.memory.frozen_bytes),
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
  return table.ToString(base::TextTable::kPageColumns);
}

}  // namespace stagecoach::partition
