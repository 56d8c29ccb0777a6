#include "tools/stagecoach/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "schedule/render/html.h"
#include "schedule/render/line_plot.h"
#include "tools/stagecoach/bench/scaling_plot.h"
#include "tools/stagecoach/terminal/other_load.h"

namespace stagecoach::tools {
namespace {

using BenchColumn = std::pair<std::string, std::function<std::string(const BenchRow&)>>;

// Returns "1757 ± 1.2 %": the median, and the larger of the distances to the ends of its interval.
std::string StepCell(const BenchRow& row) {
  const BenchInterval interval = MedianInterval(row.steps_ms);
  const double step = row.step_ms();
  const double away = std::max(interval.high - step, step - interval.low) / step;
  return absl::StrFormat("%s ± %s", FormatMilliseconds(step), base::FormatPercent(away));
}

std::string PredictedCell(const BenchRow& row) {
  return row.predicted_step_ms > 0 ? base::FormatChange(row.predicted_step_ms / row.step_ms() - 1)
                                   : "-";
}

std::string PeakCell(const BenchRow& row) {
  return row.peak_share() > 0 ? base::FormatPercent(row.peak_share()) : "-";
}

double SpeedUp(const BenchRow& baseline, const BenchRow& row) {
  return row.samples_per_second() / baseline.samples_per_second();
}

double Efficiency(const BenchRow& baseline, const BenchRow& row) {
  return SpeedUp(baseline, row) * baseline.what.all_devices() / row.what.all_devices();
}

std::vector<BenchColumn> ScalingColumns(const BenchResults& results, BenchScaling scaling) {
  return {{"speed-up",
           [&results, scaling](const BenchRow& row) {
             const BenchRow* const baseline = BaselineOf(results, row, scaling);
             return baseline == nullptr ? "-" : absl::StrFormat("%.2f", SpeedUp(*baseline, row));
           }},
          {"efficiency", [&results, scaling](const BenchRow& row) {
             const BenchRow* const baseline = BaselineOf(results, row, scaling);
             return baseline == nullptr ? std::string("-")
                                        : base::FormatPercent(Efficiency(*baseline, row));
           }}};
}

std::vector<BenchColumn> FigureColumns(const BenchResults& results,
                                       std::optional<BenchScaling> scaling) {
  std::vector<BenchColumn> columns = {
      {"step, ms", StepCell},
      {results.rate_unit(),
       [&results](const BenchRow& row) { return FormatRate(results.RateOf(row)); }},
      {"of peak", PeakCell}};
  if (scaling.has_value()) {
    for (BenchColumn& column : ScalingColumns(results, *scaling)) {
      columns.push_back(std::move(column));
    }
  } else {
    columns.emplace_back("predicted", PredictedCell);
    columns.emplace_back("bubble",
                         [](const BenchRow& row) { return base::FormatPercent(row.bubble); });
  }
  return columns;
}

// Returns whether no other row of the model has more samples, or tokens, per second.
bool IsFastest(const BenchRow& row, const BenchResults& results) {
  return row.error.empty() &&
         std::none_of(results.rows.begin(), results.rows.end(), [&](const BenchRow& other) {
           return other.error.empty() && other.what.model == row.what.model &&
                  other.samples_per_second() > row.samples_per_second();
         });
}

std::vector<BenchColumn> AllFigures(const BenchResults& results, BenchScaling scaling) {
  std::vector<BenchColumn> columns = FigureColumns(results, /*scaling=*/std::nullopt);
  columns.emplace_back("predicted bubble", [](const BenchRow& row) {
    return row.predicted_bubble > 0 ? base::FormatPercent(row.predicted_bubble) : "-";
  });
  for (BenchColumn& column : ScalingColumns(results, scaling)) columns.push_back(std::move(column));
  columns.emplace_back("peak memory",
                       [](const BenchRow& row) { return base::FormatBytes(row.peak_bytes); });
  columns.emplace_back("predicted memory", [](const BenchRow& row) {
    return base::FormatBytes(row.predicted_peak_bytes);
  });
  columns.emplace_back("sent per step",
                       [](const BenchRow& row) { return base::FormatBytes(row.sent_bytes); });
  columns.emplace_back("predicted to be sent", [](const BenchRow& row) {
    return base::FormatBytes(row.predicted_sent_bytes);
  });
  return columns;
}

// Returns "" if there was little.
std::string OtherLoadOf(const BenchResults& results) {
  double most = 0;
  for (const BenchRow& row : results.rows) most = std::max(most, row.other_load);
  return DescribeOtherLoad(most);
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Returns the CSV's columns: numbers unformatted, nothing for unknown values.
std::vector<BenchColumn> CsvColumns() {
  const auto number = [](auto value_of, bool may_be_zero) {
    return [value_of, may_be_zero](const BenchRow& row) {
      const double value = static_cast<double>(value_of(row));
      return value > 0 || may_be_zero ? absl::StrFormat("%.10g", value) : "";
    };
  };
  const auto known = [&](auto value_of) { return number(value_of, true); };
  const auto if_known = [&](auto value_of) { return number(value_of, false); };
  std::vector<BenchColumn> columns;
  // The names are those of ToJson.
  const nlohmann::ordered_json of_any = ToJson(BenchCase());
  for (const auto& [key, value] : of_any.items()) {
    columns.emplace_back(key, [key = std::string(key)](const BenchRow& row) {
      const nlohmann::ordered_json of_row = ToJson(row.what)[key];
      return of_row.is_string() ? of_row.get<std::string>() : of_row.dump();
    });
  }
  const std::vector<BenchColumn> figures = {
      {"steps", known([](const BenchRow& row) { return row.steps_ms.size(); })},
      {"step_ms", known([](const BenchRow& row) { return row.step_ms(); })},
      {"step_ms_low", known([](const BenchRow& row) { return MedianInterval(row.steps_ms).low; })},
      {"step_ms_high",
       known([](const BenchRow& row) { return MedianInterval(row.steps_ms).high; })},
      {"predicted_step_ms", if_known([](const BenchRow& row) { return row.predicted_step_ms; })},
      {"samples_per_second", known([](const BenchRow& row) { return row.samples_per_second(); })},
      {"tokens_per_sample", if_known([](const BenchRow& row) { return row.tokens; })},
      {"tokens_per_second", if_known([](const BenchRow& row) { return row.tokens_per_second(); })},
      {"flops", if_known([](const BenchRow& row) { return row.flops; })},
      {"peak_flops_per_second", if_known([](const BenchRow& row) { return row.peak_flops; })},
      {"peak_share", if_known([](const BenchRow& row) { return row.peak_share(); })},
      {"bubble", known([](const BenchRow& row) { return row.bubble; })},
      {"predicted_bubble", if_known([](const BenchRow& row) { return row.predicted_bubble; })},
      {"other_load", known([](const BenchRow& row) { return row.other_load; })},
      {"peak_bytes", known([](const BenchRow& row) { return row.peak_bytes; })},
      {"predicted_peak_bytes", known([](const BenchRow& row) { return row.predicted_peak_bytes; })},
      {"sent_bytes", known([](const BenchRow& row) { return row.sent_bytes; })},
      {"predicted_sent_bytes",
       known([](const BenchRow& row) { return row.predicted_sent_bytes; })}};
  columns.insert(columns.end(), figures.begin(), figures.end());
  return columns;
}

}  // namespace

const BenchRow* BaselineOf(const BenchResults& results, const BenchRow& row, BenchScaling scaling) {
  if (!row.error.empty()) return nullptr;
  const BenchRow* baseline = nullptr;
  for (const BenchRow& other : results.rows) {
    const bool is_comparable =
        other.error.empty() && AreSameWork(other.what, row.what, scaling) &&
        (other.what.schedule == row.what.schedule || other.what.all_devices() == 1);
    if (!is_comparable) continue;
    if (baseline == nullptr || other.what.all_devices() < baseline->what.all_devices()) {
      baseline = &other;
    }
  }
  return baseline;
}

std::string ToTable(const BenchResults& results, std::optional<BenchScaling> scaling) {
  using Align = base::TextTable::Align;
  const std::string machine = absl::StrCat(ToString(results.machine), "\n");
  if (results.rows.empty()) return machine;
  const std::vector<BenchCase> cases = results.cases();
  const std::vector<BenchProperty> names = PropertiesOf(cases);
  const std::vector<BenchColumn> figures = FigureColumns(results, scaling);
  std::vector<base::TextTable::Column> columns;
  for (const BenchProperty& name : names) {
    columns.push_back({name.name, name.is_text ? Align::kLeft : Align::kRight});
  }
  for (const BenchColumn& column : figures) columns.push_back({column.first, Align::kRight});
  base::TextTable table(columns);
  std::string reasons;
  for (const BenchRow& row : results.rows) {
    std::vector<std::string> cells;
    for (const BenchProperty& name : names) {
      cells.push_back(name.of(row.what));
      if (name.name == "schedule" && IsFastest(row, results)) cells.back() += " *";
    }
    for (const BenchColumn& column : figures) {
      cells.push_back(row.error.empty() ? column.second(row) : "-");
    }
    if (!row.error.empty()) {
      absl::StrAppend(&reasons, "\n", ToString(row.what), ": ", row.error, "\n");
    }
    table.AddRow(std::move(cells));
  }
  const std::string others = OtherLoadOf(results);
  if (!others.empty()) absl::StrAppend(&reasons, "\n", others, "\n");
  return absl::StrCat(machine, results.options.empty() ? "" : absl::StrCat(results.options, "\n"),
                      CommonOf(cases), "\n\n", table.ToString(base::TextTable::kPageColumns),
                      reasons);
}

std::string ToCsv(const BenchResults& results) {
  const std::vector<BenchColumn> columns = CsvColumns();
  std::string csv = absl::StrJoin(columns, ",", [](std::string* line, const BenchColumn& column) {
    absl::StrAppend(line, column.first);
  });
  absl::StrAppend(&csv, ",error\n");
  for (const BenchRow& row : results.rows) {
    const nlohmann::ordered_json what = ToJson(row.what);
    std::string line;
    for (const BenchColumn& column : columns) {
      const bool is_of_case = what.contains(column.first);
      absl::StrAppend(&line, is_of_case || row.error.empty() ? CsvField(column.second(row)) : "",
                      ",");
    }
    absl::StrAppend(&csv, line, CsvField(row.error), "\n");
  }
  return csv;
}

std::string ToHtml(const BenchResults& results, BenchScaling scaling) {
  schedule::PageText text;
  text.title = "Throughput";
  text.facts = {{"machine", ToString(results.machine)}, {"rows", CommonOf(results.cases())}};
  if (!results.options.empty()) text.facts.push_back({"options", results.options});
  const std::string others = OtherLoadOf(results);
  if (!others.empty()) text.facts.push_back({"not idle", others});
  const std::vector<BenchProperty> names = PropertiesOf(results.cases());
  const std::vector<BenchColumn> figures = AllFigures(results, scaling);
  for (const BenchProperty& name : names) text.columns.push_back(name.name);
  for (const BenchColumn& column : figures) text.columns.push_back(column.first);
  text.columns.emplace_back("");
  for (const BenchRow& row : results.rows) {
    std::vector<std::string> cells;
    for (const BenchProperty& name : names) cells.push_back(name.of(row.what));
    for (const BenchColumn& column : figures) {
      cells.push_back(row.error.empty() ? column.second(row) : "");
    }
    cells.push_back(!row.error.empty() ? row.error : IsFastest(row, results) ? "fastest" : "");
    text.rows.push_back(std::move(cells));
  }
  return schedule::ToHtml(
      {.text = std::move(text),
       .picture = absl::StrCat(ThroughputBars(results), ScalingPlot(results, scaling)),
       .style = absl::StrCat(schedule::kPlotStyle, kBenchStyle)});
}

}  // namespace stagecoach::tools
