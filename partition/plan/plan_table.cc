// The table of partition/plan/compiled_plan.h.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "partition/plan/compiled_plan.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::StageId;

// Returns what a rank's stages keep except their results and tables, which count as buffers.
int64_t NamedResidentBytes(const CompiledPlan& plan, const RankReport& rank) {
  int64_t bytes = 0;
  for (const StageId stage : rank.stages) {
    const schedule::StageMemory& memory = plan.of(stage).memory;
    bytes += memory.parameter_bytes + memory.frozen_bytes + memory.gradient_bytes +
             memory.optimizer_bytes;
  }
  return bytes;
}

}  // namespace

int64_t BufferBytes(const CompiledPlan& plan, Rank rank) {
  const RankReport& own = plan.of(rank);
  return own.peak_bytes() - own.training.peak_stash_bytes - NamedResidentBytes(plan, own);
}

int64_t MostHostBytes(const CompiledPlan& plan) {
  int64_t most = 0;
  for (const RankReport& rank : plan.ranks) most = std::max(most, rank.training.host_bytes());
  return most;
}

std::string DescribeHostContents(const Plan& plan) {
  std::vector<absl::string_view> contents;
  if (plan.moves_stashes()) contents.push_back("stashes");
  if (plan.replication.offloads_optimizer) contents.push_back("the optimizer's state");
  return absl::StrJoin(contents, " and ");
}

std::string PlanTable(const CompiledPlan& plan) {
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
  for (Rank rank(0); rank.value() < static_cast<int>(plan.ranks.size()); ++rank) {
    const RankReport& own = plan.of(rank);
    for (const StageId id : own.stages) {
      const StageReport& stage = plan.of(id);
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
        cells[8] = base::FormatBytes(BufferBytes(plan, rank));
        cells[9] = base::FormatBytes(own.peak_bytes());
      }
      table.AddRow(std::move(cells));
    }
  }
  return table.ToString(base::TextTable::kPageColumns);
}

}  // namespace stagecoach::partition
