#include "tools/stagecoach/train/epoch_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "tools/stagecoach/terminal/bars.h"

namespace stagecoach::tools {
namespace {

constexpr int kLeastBarColumns = 8;  // a narrower bar says nothing
constexpr int kMostBarColumns = 24;
constexpr int kEpochColumns = 5;
constexpr int kLossColumns = 7;

std::string Percent(double share) { return base::FormatPercent(share, 2); }

// An epoch that a resumed run only had to evaluate has no times.
std::string Rate(const engine::EpochResult& row, double per_sample) {
  if (row.samples_per_second <= 0) return "-";
  return base::FormatCount(std::llround(row.samples_per_second * per_sample));
}

// Aligns as the table does: to the right.
std::string Cell(const std::string& text, int width) {
  return absl::StrFormat("  %*s", width, text);
}

}  // namespace

EpochTable::EpochTable(const Measures& measures, double loss_of_guessing, int columns,
                       const std::vector<std::string>& metrics)
    : loss_of_guessing_(loss_of_guessing) {
  using Result = engine::EpochResult;
  if (measures.has_rmse()) {
    const auto rmse = [measures](double loss) {
      return absl::StrFormat("%.6g", measures.Rmse(loss));
    };
    columns_.push_back({"train rmse", 10, [rmse](const Result& row) { return rmse(row.loss); }});
    columns_.push_back(
        {"test rmse", 10, [rmse](const Result& row) { return rmse(row.test_loss); }});
  } else {
    columns_.push_back(
        {"train acc.", 10, [](const Result& row) { return Percent(row.train_accuracy); }});
    columns_.push_back(
        {"test acc.", 9, [](const Result& row) { return Percent(row.test_accuracy); }});
    if (measures.has_perplexity) {
      columns_.push_back({"perplexity", 10, [](const Result& row) {
                            return absl::StrFormat("%.2f", std::exp(row.test_loss));
                          }});
    } else {
      columns_.push_back({"test loss", 9, [](const Result& row) {
                            return absl::StrFormat("%.4f", row.test_loss);
                          }});
    }
  }
  for (const std::string& metric : metrics) {
    columns_.push_back({engine::DescribeMetric(metric), 9, [metric](const Result& row) {
                          const auto found = row.more.find(metric);
                          return found == row.more.end() ? "-"
                                                         : absl::StrFormat("%.4f", found->second);
                        }});
  }
  columns_.push_back({"time", 7, [](const Result& row) {
                        return row.samples_per_second > 0 ? base::FormatDuration(row.training)
                                                          : "-";
                      }});
  columns_.push_back(
      {"eval", 7, [](const Result& row) { return base::FormatDuration(row.evaluation); }});
  if (measures.tokens > 0) {
    const auto tokens = static_cast<double>(measures.tokens);
    columns_.push_back({"tokens/s", 10, [tokens](const Result& row) { return Rate(row, tokens); }});
  } else {
    columns_.push_back({"samples/s", 9, [](const Result& row) { return Rate(row, 1); }});
  }
  int taken = kEpochColumns + 2 + kLossColumns;
  for (const Column& column : columns_) taken += 2 + column.width;
  const int left = columns - taken - 2;
  bar_columns_ = left < kLeastBarColumns ? 0 : std::min(left, kMostBarColumns);
}

std::string EpochTable::Header() const {
  std::string names = "epoch     loss";
  std::string rule = "-----  -------";
  if (bar_columns_ > 0) {
    // Its ends stand above it.
    absl::StrAppendFormat(&names, "  0%*.2f", bar_columns_ - 1, loss_of_guessing_);
    absl::StrAppend(&rule, "  ", std::string(static_cast<size_t>(bar_columns_), '-'));
  }
  for (const Column& column : columns_) {
    absl::StrAppend(&names, Cell(column.name, column.width));
    absl::StrAppend(&rule, "  ", std::string(static_cast<size_t>(column.width), '-'));
  }
  return absl::StrCat(names, "\n", rule, "\n");
}

std::string EpochTable::Row(const std::string& epochs, const engine::EpochResult& result) const {
  std::string row = absl::StrFormat("%*s  %*.4f", kEpochColumns, epochs, kLossColumns, result.loss);
  if (bar_columns_ > 0) {
    absl::StrAppend(&row, "  ", Bar(result.loss / loss_of_guessing_, bar_columns_));
  }
  for (const Column& column : columns_) {
    absl::StrAppend(&row, Cell(column.cell(result), column.width));
  }
  return absl::StrCat(row, "\n");
}

}  // namespace stagecoach::tools
