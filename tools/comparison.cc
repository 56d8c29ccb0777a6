#include "tools/comparison.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text_table.h"
#include "base/units.h"
#include "partition/files/plan_file.h"
#include "partition/heuristics.h"
#include "tools/exit_status.h"
#include "tools/flags.h"

namespace stagecoach::tools {
namespace {

using partition::Plan;
using partition::Receipt;

constexpr size_t kMostStagesListed = 8;

bool IsPlanFile(const std::string& name) { return absl::EndsWithIgnoreCase(name, ".json"); }

int64_t PeakBytes(const Receipt& receipt) {
  int64_t peak_bytes = 0;
  for (const partition::RankReport& rank : receipt.report.ranks) {
    peak_bytes = std::max(peak_bytes, rank.peak_bytes());
  }
  return peak_bytes;
}

std::string Milliseconds(double ns) { return absl::StrFormat("%.1f ms", ns / 1e6); }

// Layers of each stage: "5 5 5 5".
std::string LayersPerStage(const Plan& plan) {
  std::string text;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (static_cast<size_t>(stage) == kMostStagesListed) return absl::StrCat(text, " …");
    absl::StrAppend(&text, stage > 0 ? " " : "", plan.last(stage) - plan.first(stage) + 1);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text) {
  std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (IsPlanFile(name)) continue;
    const absl::Status known = ParseChoice(name, partition::HeuristicNames()).status();
    if (!known.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(known.message(), ", or the .json file of a plan"));
    }
  }
  return names;
}

absl::StatusOr<ComparedPlan> Compare(const std::string& name, const Receipt& own,
                                     const partition::PlannerRequest& request) {
  Plan plan;
  if (IsPlanFile(name)) {
    ASSIGN_OR_RETURN(partition::PlanFile file, From(Origin::kData, partition::ReadPlanFile(name)));
    plan = std::move(file.plan);
  } else {
    ASSIGN_OR_RETURN(plan,
                     From(Origin::kConfiguration, CutByHeuristic(name, own.plan, request.profile)));
  }
  absl::StatusOr<Receipt> receipt =
      ReceiptOf(plan, request.profile, request.cluster, request.objective);
  if (!receipt.ok()) {
    return From(Origin::kConfiguration, base::Annotate(receipt.status(), name));
  }
  const bool fits = CheckFits(*receipt).ok();
  return ComparedPlan{name, *std::move(receipt), fits};
}

std::string ComparisonTable(const Receipt& own, const std::vector<ComparedPlan>& compared) {
  using Align = base::TextTable::Align;
  const bool is_step = own.objective == partition::PlanObjective::kStep;
  base::TextTable table({{"plan", Align::kLeft},
                         {"layers", Align::kLeft},
                         {is_step ? "step" : "bottleneck", Align::kRight},
                         {"per row", Align::kRight},
                         {"largest peak", Align::kRight},
                         {"fits", Align::kLeft}});
  const auto per_row_ns = [](const Receipt& receipt) {
    return receipt.objective_ns / static_cast<double>(receipt.plan.batch_rows());
  };
  const auto add = [&](const std::string& name, const Receipt& receipt, bool fits) {
    const double change = per_row_ns(receipt) / per_row_ns(own) - 1;
    table.AddRow({name, LayersPerStage(receipt.plan), Milliseconds(receipt.objective_ns),
                  &receipt == &own ? "" : absl::StrFormat("%+.1f %%", 100 * change),
                  base::FormatBytes(PeakBytes(receipt)), fits ? "yes" : "no"});
  };
  add("this plan", own, true);
  for (const ComparedPlan& other : compared) add(other.name, other.receipt, other.fits);
  return table.ToString();
}

nlohmann::ordered_json ComparisonToJson(const std::vector<ComparedPlan>& compared) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ComparedPlan& other : compared) {
    const Receipt& receipt = other.receipt;
    all.push_back({{"name", other.name},
                   {"objective_ms", receipt.objective_ns / 1e6},
                   {"step_ms", static_cast<double>(receipt.simulation.step_ns) / 1e6},
                   {"peak_bytes", PeakBytes(receipt)},
                   {"fits", other.fits},
                   {"first_layers", receipt.plan.first_layer}});
  }
  return all;
}

}  // namespace stagecoach::tools
