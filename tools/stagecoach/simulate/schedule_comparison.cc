#include "tools/stagecoach/simulate/schedule_comparison.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "schedule/io/schedule_file.h"
#include "schedule/render/html.h"
#include "tools/stagecoach/simulate/simulation_report.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/values/schedule_option.h"

namespace stagecoach::tools {
namespace {

using schedule::OrderObjective;
using Align = base::TextTable::Align;
using Row = ScheduleComparison::Row;

constexpr size_t kColumns = 80;

int64_t TimeNs(const SimulatedSchedule& simulated, OrderObjective objective) {
  return objective == OrderObjective::kStep ? simulated.simulation.step_ns
                                            : simulated.simulation.span_ns;
}

double MicroBatchesPerSecond(const SimulatedSchedule& simulated, OrderObjective objective) {
  return simulated.as_given.num_micro_batches * 1e9 /
         static_cast<double>(TimeNs(simulated, objective));
}

double FullestStash(const SimulatedSchedule& simulated) {
  return *std::max_element(simulated.peak_stash.begin(), simulated.peak_stash.end());
}

int64_t PeakBytes(const SimulatedSchedule& simulated) {
  int64_t peak_bytes = 0;
  for (const schedule::RankTimes& rank : simulated.simulation.ranks) {
    peak_bytes = std::max(peak_bytes, rank.peak_bytes);
  }
  return peak_bytes;
}

// Either peak is 0 for all rows or for none, so two rows are compared by the same one.
bool IsBetter(const SimulatedSchedule& a, const SimulatedSchedule& b, OrderObjective objective) {
  const double a_rate = MicroBatchesPerSecond(a, objective);
  const double b_rate = MicroBatchesPerSecond(b, objective);
  if (a_rate != b_rate) return a_rate > b_rate;
  if (PeakBytes(a) != PeakBytes(b)) return PeakBytes(a) < PeakBytes(b);
  return FullestStash(a) < FullestStash(b);
}

std::optional<size_t> BestOf(const ScheduleComparison& comparison) {
  std::optional<size_t> best;
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const absl::StatusOr<SimulatedSchedule>& simulated = comparison.rows[i].simulated;
    if (!simulated.ok()) continue;
    if (!best.has_value() ||
        IsBetter(*simulated, *comparison.rows[*best].simulated, comparison.objective)) {
      best = i;
    }
  }
  return best;
}

std::string Reason(const Row& row) {
  return std::string(absl::StripPrefix(row.simulated.status().message(),
                                       absl::StrCat("schedule ", row.schedule, ": ")));
}

bool KnowsSizes(const ScheduleComparison& comparison) {
  return comparison.best.has_value() && KnowsSizes(*comparison.rows[*comparison.best].simulated);
}

// Returns the columns before the reason, if there is one.
std::vector<std::string> NameCells(const Row& row) {
  return {row.schedule,
          row.micro_batches.has_value() ? absl::StrCat(*row.micro_batches) : std::string("-")};
}

std::vector<std::string> FoundColumns(const ScheduleComparison& comparison) {
  const bool has_steps = comparison.objective == OrderObjective::kStep;
  return {has_steps ? "step" : "span", has_steps ? "idle" : "bubble",
          KnowsSizes(comparison) ? "peak memory" : "peak stash"};
}

// Returns the further columns of rows that can be performed, then micro-batches per second.
std::vector<std::string> FoundCells(const ScheduleComparison& comparison,
                                    const SimulatedSchedule& simulated) {
  const double lost = comparison.objective == OrderObjective::kStep
                          ? IdleRate(simulated.simulation)
                          : simulated.simulation.bubble_rate;
  return {FormatMs(TimeNs(simulated, comparison.objective)), base::FormatPercent(lost, 2),
          KnowsSizes(comparison) ? base::FormatBytes(PeakBytes(simulated))
                                 : absl::StrFormat("%.4g", FullestStash(simulated)),
          absl::StrFormat("%.4g", MicroBatchesPerSecond(simulated, comparison.objective))};
}

void AppendCells(std::vector<std::string> more, std::vector<std::string>& list) {
  std::move(more.begin(), more.end(), std::back_inserter(list));
}

// Returns the end of a long path.
std::string Shortened(const std::string& name) {
  constexpr size_t kMaxName = 15;
  const size_t width = base::Width(name);
  if (width <= kMaxName) return name;
  return absl::StrCat("\u2026", base::SplitAt(name, width - kMaxName + 1).second);
}

// Appends words to a line, and breaks it before it exceeds kColumns; further lines begin below the
// first of the words.
void AppendWords(absl::string_view words, std::string& line) {
  const size_t indent = line.size();
  size_t columns = indent;
  for (const absl::string_view word : absl::StrSplit(words, ' ')) {
    if (columns > indent && columns + 1 + word.size() > kColumns) {
      absl::StrAppend(&line, "\n", std::string(indent, ' '));
      columns = indent;
    } else if (columns > indent) {
      line += ' ';
      ++columns;
    }
    absl::StrAppend(&line, word);
    columns += word.size();
  }
}

}  // namespace

absl::StatusOr<ScheduleComparison> CompareSchedules(const ScheduleRequest& request,
                                                    const std::vector<std::string>& schedules,
                                                    const std::vector<int>& micro_batches) {
  ScheduleComparison comparison;
  comparison.objective = request.objective.value_or(OrderObjective::kStep);
  const bool has_auto =
      std::find(schedules.begin(), schedules.end(), kAutomatic) != schedules.end();
  std::vector<std::optional<int>> counts(micro_batches.begin(), micro_batches.end());
  if (counts.empty()) counts.push_back(std::nullopt);
  for (const std::string& name : schedules) {
    for (const std::optional<int>& count : counts) {
      ScheduleRequest one = request;
      one.schedule = name;
      one.micro_batches = count;
      // All are compared by what the search minimizes.
      if (has_auto && name != kAutomatic) one.objective.reset();
      Row row = {name, count, SimulateSchedule(one)};
      if (row.simulated.ok()) {
        row.micro_batches = row.simulated->as_given.num_micro_batches;
      } else if (ExitStatusOf(row.simulated.status()) != kExitBadConfiguration) {
        return row.simulated.status();
      } else if (!count.has_value() && !schedule::IsScheduleFile(name)) {
        row.micro_batches = ScheduleRequest::kDefaultMicroBatches;
      }
      comparison.rows.push_back(std::move(row));
    }
  }
  comparison.best = BestOf(comparison);
  return comparison;
}

std::string ToText(const ScheduleComparison& comparison) {
  std::vector<base::TextTable::Column> columns = {{"schedule", Align::kLeft},
                                                  {"micro-batches", Align::kRight}};
  for (const std::string& column : FoundColumns(comparison)) {
    columns.push_back({column, Align::kRight});
  }
  columns.push_back({"per second", Align::kRight});
  base::TextTable table(columns);
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const Row& row = comparison.rows[i];
    std::vector<std::string> cells = NameCells(row);
    cells[0] = absl::StrCat(Shortened(cells[0]), i == comparison.best ? " *" : "");
    if (row.simulated.ok()) AppendCells(FoundCells(comparison, *row.simulated), cells);
    cells.resize(columns.size());
    table.AddRow(std::move(cells));
  }
  // Reasons take the place of the numbers, and may be wider.
  std::vector<std::string> lines = absl::StrSplit(table.ToString(), '\n');
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    if (comparison.rows[i].simulated.ok()) continue;
    std::string& line = lines[2 + i];
    line += "  ";
    AppendWords(Reason(comparison.rows[i]), line);
  }
  return absl::StrCat(
      absl::StrJoin(lines, "\n"),
      comparison.best.has_value()
          ? "\n*: the most micro-batches per second and, of equals, the least memory\n"
          : "");
}

nlohmann::ordered_json ToJson(const ScheduleComparison& comparison) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const Row& row = comparison.rows[i];
    nlohmann::ordered_json json;
    if (row.simulated.ok()) {
      json = ToJson(*row.simulated);
      json["schedule"] = row.schedule;
      json["peak_stash"] = FullestStash(*row.simulated);
      if (KnowsSizes(*row.simulated)) json["peak_bytes"] = PeakBytes(*row.simulated);
      json["micro_batches_per_second"] =
          MicroBatchesPerSecond(*row.simulated, comparison.objective);
      json["best"] = i == comparison.best;
    } else {
      json = {{"schedule", row.schedule}, {"micro_batches", nullptr}, {"error", Reason(row)}};
      if (row.micro_batches.has_value()) json["micro_batches"] = *row.micro_batches;
    }
    rows.push_back(std::move(json));
  }
  return {{"rows", std::move(rows)}};
}

std::string ToHtml(const ScheduleComparison& comparison) {
  schedule::PageText text;
  text.title = "Schedules compared";
  text.columns = {"schedule", "micro-batches"};
  AppendCells(FoundColumns(comparison), text.columns);
  AppendCells({"micro-batches per second", ""}, text.columns);
  std::vector<schedule::NamedTrace> traces;
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const Row& row = comparison.rows[i];
    const bool is_best = i == comparison.best;
    std::vector<std::string> cells = NameCells(row);
    const std::string name = absl::StrCat(cells[0], ", ", cells[1], " micro-batches");
    if (row.simulated.ok()) {
      AppendCells(FoundCells(comparison, *row.simulated), cells);
      cells.emplace_back(is_best ? "best" : "");
      traces.push_back({name, row.simulated->simulation.trace, row.simulated->unit_stash});
    } else {
      cells.resize(text.columns.size() - 1);
      cells.push_back(Reason(row));
    }
    if (is_best) text.facts = {{"best", name}};
    text.rows.push_back(std::move(cells));
  }
  return schedule::ToHtml(traces, text);
}

}  // namespace stagecoach::tools
