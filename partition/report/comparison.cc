#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "partition/report/evaluation_parts.h"
#include "partition/report/evaluation_report.h"

namespace stagecoach::partition {
namespace {

constexpr int kMostStagesListed = 8;

// Returns the layers of each stage: "5 5 5 5".
std::string LayersPerStage(const Plan& plan) {
  std::string text;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (stage == kMostStagesListed) return absl::StrCat(text, " \xE2\x80\xA6");
    absl::StrAppend(&text, stage > 0 ? " " : "", plan.last(stage) - plan.first(stage) + 1);
  }
  return text;
}

double NsPerRow(const PlanEvaluation& evaluation) {
  return evaluation.objective_ns / static_cast<double>(evaluation.plan().batch_rows());
}

}  // namespace

int64_t PeakBytes(const PlanEvaluation& evaluation) {
  int64_t peak_bytes = 0;
  for (const RankReport& rank : evaluation.compiled.ranks) {
    peak_bytes = std::max(peak_bytes, rank.peak_bytes());
  }
  return peak_bytes;
}

std::vector<std::vector<std::string>> ComparisonCells(const PlanEvaluation& own,
                                                      absl::Span<const ComparedPlan> compared) {
  const bool is_step = own.objective == PlanObjective::kStep;
  std::vector<std::vector<std::string>> cells = {
      {"plan", "layers", is_step ? "step" : "bottleneck", "per row", "largest peak", "fits"},
      {"this plan", LayersPerStage(own.plan()), Headline(own.objective_ns), "",
       base::FormatBytes(PeakBytes(own)), "yes"}};
  for (const ComparedPlan& other : compared) {
    const double change = NsPerRow(other.evaluation) / NsPerRow(own) - 1;
    cells.push_back({other.name, LayersPerStage(other.evaluation.plan()),
                     Headline(other.evaluation.objective_ns), base::FormatChange(change),
                     base::FormatBytes(PeakBytes(other.evaluation)), other.fits ? "yes" : "no"});
  }
  return cells;
}

std::string ComparisonTable(const PlanEvaluation& own, absl::Span<const ComparedPlan> compared) {
  using Align = base::TextTable::Align;
  const std::vector<std::vector<std::string>> cells = ComparisonCells(own, compared);
  std::vector<base::TextTable::Column> columns;
  for (const std::string& title : cells.front()) {
    const bool is_number = columns.size() >= 2 && columns.size() < 5;
    columns.push_back({title, is_number ? Align::kRight : Align::kLeft});
  }
  base::TextTable table(columns);
  for (size_t row = 1; row < cells.size(); ++row) table.AddRow(cells[row]);
  return table.ToString(base::TextTable::kPageColumns);
}

}  // namespace stagecoach::partition
