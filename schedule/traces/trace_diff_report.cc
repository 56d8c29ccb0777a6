// The times of a trace, and a TraceDiff, as tables and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "schedule/traces/trace_diff.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {
namespace {

using Align = base::TextTable::Align;
using Column = base::TextTable::Column;

constexpr Cause kComputeCauses[] = {Cause::kForward,  Cause::kBackwardInput, Cause::kBackwardWeight,
                                    Cause::kBackward, Cause::kOverlapped,    Cause::kOfStage};
constexpr Cause kOtherCauses[] = {Cause::kActivations, Cause::kGradients, Cause::kSends,
                                  Cause::kExecutor, Cause::kTail};

// Formats all times of a report in one unit.
class Times {
 public:
  explicit Times(int64_t step_ns) : unit_(UnitFor(step_ns)) {}
  explicit Times(const TraceDiff& diff)
      : Times(std::max(diff.simulated_step_ns, diff.measured_step_ns)) {}

  const char* unit() const { return unit_.name; }
  std::string Plain(int64_t ns) const {
    return absl::StrFormat("%.*f", Decimals(), static_cast<double>(ns) / Scale());
  }
  std::string Signed(int64_t ns) const {
    return ns == 0 ? Plain(0)
                   : absl::StrFormat("%+.*f", Decimals(), static_cast<double>(ns) / Scale());
  }

 private:
  double Scale() const { return static_cast<double>(unit_.ns); }
  int Decimals() const { return unit_.ns == 1 ? 0 : 3; }

  TimeUnit unit_;
};

std::string Headline(const TraceDiff& diff, const Times& times) {
  std::string line =
      absl::StrCat("step: ", times.Plain(diff.simulated_step_ns), " ", times.unit(), " simulated, ",
                   times.Plain(diff.measured_step_ns), " ", times.unit(),
                   " measured: ", times.Signed(diff.difference_ns()), " ", times.unit());
  if (diff.simulated_step_ns > 0) {
    absl::StrAppendFormat(&line, " (%+.1f %%)",
                          100.0 * static_cast<double>(diff.difference_ns()) /
                              static_cast<double>(diff.simulated_step_ns));
  }
  return line + "\n";
}

// Returns the differences of all ranks: compute as one, and all other causes.
std::string RankTable(const TraceDiff& diff, const Times& times) {
  std::vector<Column> columns = {{"rank", Align::kRight}, {"compute", Align::kRight}};
  for (const Cause cause : kOtherCauses) columns.push_back({CauseName(cause), Align::kRight});
  columns.push_back({"sum", Align::kRight});
  base::TextTable table(columns);
  for (size_t r = 0; r < diff.ranks.size(); ++r) {
    const TimeSplit& split = diff.ranks[r];
    std::vector<std::string> row = {absl::StrCat(r), times.Signed(split.compute_ns())};
    for (const Cause cause : kOtherCauses) row.push_back(times.Signed(split[cause]));
    row.push_back(times.Signed(split.sum_ns()));
    table.AddRow(row);
  }
  return absl::StrCat("\nDifference by rank (", times.unit(), ")\n",
                      table.ToString(base::TextTable::kPageColumns));
}

// Returns the differences in compute of all ranks, by the operations that occur.
std::string OperationTable(const TraceDiff& diff, const Times& times) {
  std::vector<Cause> causes;
  std::vector<Column> columns = {{"rank", Align::kRight}};
  for (const Cause cause : kComputeCauses) {
    if (diff.simulated[cause] == 0 && diff.measured[cause] == 0) continue;
    causes.push_back(cause);
    columns.push_back({CauseName(cause), Align::kRight});
  }
  if (causes.empty()) return "";
  columns.push_back({"compute", Align::kRight});
  base::TextTable table(columns);
  for (size_t r = 0; r < diff.ranks.size(); ++r) {
    std::vector<std::string> row = {absl::StrCat(r)};
    for (const Cause cause : causes) row.push_back(times.Signed(diff.ranks[r][cause]));
    row.push_back(times.Signed(diff.ranks[r].compute_ns()));
    table.AddRow(row);
  }
  return absl::StrCat("\nDifference in compute by operation (", times.unit(), ")\n",
                      table.ToString(base::TextTable::kPageColumns));
}

std::string MostTable(const TraceDiff& diff, const Times& times) {
  if (diff.most.empty()) return "";
  base::TextTable table({{"rank", Align::kRight},
                         {"action"},
                         {"cause"},
                         {"started", Align::kRight},
                         {"simulated", Align::kRight},
                         {"measured", Align::kRight},
                         {"difference", Align::kRight}});
  for (const DelayCause& one : diff.most) {
    table.AddRow({absl::StrCat(one.rank.value()), ToString(one.action), CauseName(one.cause),
                  times.Plain(one.started_ns), times.Plain(one.simulated_ns),
                  times.Plain(one.measured_ns), times.Signed(one.difference_ns())});
  }
  return absl::StrCat("\nLargest differences of single actions (", times.unit(), ")\n",
                      table.ToString(base::TextTable::kPageColumns));
}

std::string PartedLine(const TraceDiff& diff, const Times& times) {
  if (!diff.parted.has_value()) {
    return "\nEvery action starts within 5 % of the step of its simulated time.\n";
  }
  const Divergence& parted = *diff.parted;
  return absl::StrCat(
      "\nFirst to start off by more than 5 % of the step: ", ToString(parted.action), " on rank ",
      parted.rank.value(), ",\nat ", times.Plain(parted.measured_ns), " ", times.unit(),
      " instead of ", times.Plain(parted.simulated_ns), " ", times.unit(), " (position ",
      parted.position, ").\n");
}

nlohmann::ordered_json PlaceToJson(Rank rank, size_t position, const Action& action) {
  return {{"rank", rank.value()}, {"position", position}, {"action", ToCode(action)}};
}

}  // namespace

TimeTable CausesOf(const TraceDiff& diff) {
  const Times times(diff);
  TimeTable table = {.unit = times.unit(),
                     .columns = {"cause", "simulated", "measured", "difference"},
                     .rows = {}};
  for (int c = 0; c < kNumCauses; ++c) {
    const Cause cause = static_cast<Cause>(c);
    if (diff.simulated[cause] == 0 && diff.measured[cause] == 0) continue;
    table.rows.push_back({CauseName(cause), times.Plain(diff.simulated[cause]),
                          times.Plain(diff.measured[cause]),
                          times.Signed(diff.difference_ns(cause))});
  }
  table.rows.push_back({"sum", times.Plain(diff.simulated_step_ns),
                        times.Plain(diff.measured_step_ns), times.Signed(diff.difference_ns())});
  return table;
}

TimeTable RankTimesOf(const Trace& trace) {
  const std::vector<TimeSplit> splits = SplitByCause(trace);
  const Times times(trace.step_ns);
  TimeTable table = {.unit = times.unit(), .columns = {"rank"}, .rows = {}};
  for (size_t r = 0; r < splits.size(); ++r) table.rows.push_back({absl::StrCat(r)});
  const auto add = [&](const char* name, auto time_of) {
    if (std::all_of(splits.begin(), splits.end(),
                    [&](const TimeSplit& split) { return time_of(split) == 0; })) {
      return;
    }
    table.columns.emplace_back(name);
    for (size_t r = 0; r < splits.size(); ++r) {
      table.rows[r].push_back(times.Plain(time_of(splits[r])));
    }
  };
  for (const Cause cause : kComputeCauses) {
    add(CauseName(cause), [cause](const TimeSplit& split) { return split[cause]; });
  }
  add("busy", [](const TimeSplit& split) { return split.compute_ns(); });
  add("messages", [](const TimeSplit& split) {
    return split[Cause::kActivations] + split[Cause::kGradients] + split[Cause::kSends];
  });
  for (const Cause cause : {Cause::kExecutor, Cause::kTail}) {
    add(CauseName(cause), [cause](const TimeSplit& split) { return split[cause]; });
  }
  table.columns.emplace_back("idle");
  for (size_t r = 0; r < splits.size(); ++r) {
    const double busy = static_cast<double>(splits[r].compute_ns());
    table.rows[r].push_back(
        trace.step_ns == 0 ? "-"
                           : base::FormatPercent(1 - busy / static_cast<double>(trace.step_ns), 2));
  }
  return table;
}

std::string ToText(const TimeTable& table) {
  std::vector<Column> columns;
  for (const std::string& column : table.columns) {
    columns.push_back({column, columns.empty() ? Align::kLeft : Align::kRight});
  }
  base::TextTable text(columns);
  for (const std::vector<std::string>& row : table.rows) text.AddRow(row);
  return text.ToString(base::TextTable::kPageColumns);
}

std::string ToText(const TraceDiff& diff) {
  const Times times(diff);
  const TimeTable causes = CausesOf(diff);
  return absl::StrCat(Headline(diff, times), "\nWhat a rank spends the step on (", causes.unit,
                      ", mean over the ranks)\n", ToText(causes), RankTable(diff, times),
                      OperationTable(diff, times), MostTable(diff, times), PartedLine(diff, times));
}

nlohmann::ordered_json ToJson(const TraceDiff& diff) {
  nlohmann::ordered_json json = {{"simulated_step_ns", diff.simulated_step_ns},
                                 {"measured_step_ns", diff.measured_step_ns},
                                 {"difference_ns", diff.difference_ns()}};
  json["causes"] = nlohmann::ordered_json::object();
  for (int c = 0; c < kNumCauses; ++c) {
    const Cause cause = static_cast<Cause>(c);
    json["causes"][CauseName(cause)] = {{"simulated_ns", diff.simulated[cause]},
                                        {"measured_ns", diff.measured[cause]},
                                        {"difference_ns", diff.difference_ns(cause)}};
  }
  json["ranks"] = nlohmann::ordered_json::array();
  for (const TimeSplit& split : diff.ranks) {
    nlohmann::ordered_json rank = {{"rank", json["ranks"].size()}};
    for (int c = 0; c < kNumCauses; ++c) {
      rank[CauseName(static_cast<Cause>(c))] = split[static_cast<Cause>(c)];
    }
    json["ranks"].push_back(rank);
  }
  json["largest"] = nlohmann::ordered_json::array();
  for (const DelayCause& one : diff.most) {
    nlohmann::ordered_json entry = PlaceToJson(one.rank, one.position, one.action);
    entry["cause"] = CauseName(one.cause);
    entry["started_ns"] = one.started_ns;
    entry["simulated_ns"] = one.simulated_ns;
    entry["measured_ns"] = one.measured_ns;
    entry["difference_ns"] = one.difference_ns();
    json["largest"].push_back(entry);
  }
  json["parted"] = nullptr;
  if (diff.parted.has_value()) {
    json["parted"] = PlaceToJson(diff.parted->rank, diff.parted->position, diff.parted->action);
    json["parted"]["simulated_start_ns"] = diff.parted->simulated_ns;
    json["parted"]["measured_start_ns"] = diff.parted->measured_ns;
  }
  return json;
}

}  // namespace stagecoach::schedule
