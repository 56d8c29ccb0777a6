// The reports of partition/plan.h.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text_table.h"
#include "base/units.h"
#include "partition/cluster.h"
#include "partition/pipeline.h"
#include "partition/plan.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
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
                                      const LossMemory& loss, schedule::Transfers transfers) {
  RETURN_IF_ERROR(CheckPlan(plan));
  if (plan.num_layers != static_cast<int>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, layers.size()));
  }
  RETURN_IF_ERROR(CheckLayers(layers));
  const auto table = std::make_shared<const LayerTable>(layers, loss);
  std::vector<RankGroup> groups;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    RankGroup& group = groups.emplace_back();
    group.devices = {rank};
    group.layers = table;
  }
  Cluster cluster = UniformCluster(plan.num_ranks());
  cluster.transfers = transfers;
  ASSIGN_OR_RETURN(const Pipeline pipeline, Pipeline::Create(plan.schedule, plan.micro_batch_rows,
                                                             std::move(groups), cluster));
  return pipeline.Report({plan.first_layer, plan.recomputed});
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
