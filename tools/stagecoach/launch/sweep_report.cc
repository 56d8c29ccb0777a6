#include "tools/stagecoach/launch/sweep_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "engine/checkpoint/metrics.h"

namespace stagecoach::tools {
namespace {

using Align = base::TextTable::Align;
using nlohmann::ordered_json;

constexpr char kSeed[] = "seed";

// What an event of an evaluation has besides metrics.
bool IsMetric(const std::string& key) {
  return key != "epoch" && key != "step" && !key.ends_with("_seconds") &&
         !key.ends_with("_per_second");
}

// The metrics that some run has, in the order in which they first occur.
std::vector<std::string> MetricsOf(absl::Span<const SweptRun> runs) {
  std::vector<std::string> names;
  for (const SweptRun& run : runs) {
    for (const auto& [name, value] : run.metrics) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::string Number(std::optional<double> value) {
  return value.has_value() ? absl::StrFormat("%.5g", *value) : "-";
}

bool SweepsSeeds(absl::Span<const SweptFlag> flags) {
  return std::any_of(flags.begin(), flags.end(), [](const SweptFlag& flag) {
    return flag.name == kSeed && flag.values.size() > 1;
  });
}

// The flags that a group's runs have in common, with their values: "learning-rate=1e-3".
std::string NameOf(absl::Span<const SweptFlag> flags, const SweptGroup& group) {
  std::vector<SweptFlag> common;
  SweptValues values;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i].name == kSeed && SweepsSeeds(flags)) continue;
    common.push_back(flags[i]);
    values.push_back(group.runs.front()->values[i]);
  }
  return Describe(common, values);
}

std::string RunsTable(absl::Span<const SweptFlag> flags, absl::Span<const SweptRun> runs) {
  const std::vector<std::string> metrics = MetricsOf(runs);
  std::vector<base::TextTable::Column> columns;
  for (const SweptFlag& flag : flags) columns.push_back({flag.name, Align::kRight});
  for (const std::string& metric : metrics) {
    columns.push_back({absl::StrReplaceAll(metric, {{"_", " "}}), Align::kRight});
  }
  columns.push_back({"time", Align::kRight});
  base::TextTable table(columns);
  for (const SweptRun& run : runs) {
    std::vector<std::string> cells = run.values;
    for (const std::string& metric : metrics) cells.push_back(Number(run.ValueOf(metric)));
    cells.push_back(run.status == 0 ? base::FormatDuration(absl::Seconds(run.seconds)) : "failed");
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

// The mean and the deviation of each metric over the seeds.
std::string GroupsTable(absl::Span<const SweptFlag> flags, absl::Span<const SweptRun> runs,
                        absl::Span<const SweptGroup> groups) {
  const std::vector<std::string> metrics = MetricsOf(runs);
  std::vector<base::TextTable::Column> columns = {{"mean over seeds", Align::kLeft},
                                                  {"runs", Align::kRight}};
  for (const std::string& metric : metrics) {
    columns.push_back({absl::StrReplaceAll(metric, {{"_", " "}}), Align::kRight});
  }
  base::TextTable table(columns);
  for (const SweptGroup& group : groups) {
    std::vector<std::string> cells = {NameOf(flags, group), absl::StrCat(group.runs.size())};
    for (const std::string& metric : metrics) {
      const std::optional<double> deviation = group.Deviation(metric);
      cells.push_back(absl::StrCat(
          Number(group.Mean(metric)),
          deviation.has_value() ? absl::StrFormat(" ± %.2g", *deviation) : std::string()));
    }
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

}  // namespace

std::optional<double> SweptRun::ValueOf(absl::string_view metric) const {
  for (const auto& [name, value] : metrics) {
    if (name == metric) return value;
  }
  return std::nullopt;
}

void ReadMetrics(const std::string& output, SweptRun& run) {
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const ordered_json event = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;
    const std::string kind = event.value("event", "");
    if (kind != "epoch" && kind != "evaluation") continue;
    run.metrics.clear();
    for (const auto& [key, value] : event.items()) {
      if (value.is_number() && IsMetric(key)) run.metrics.emplace_back(key, value.get<double>());
    }
  }
}

std::optional<double> SweptGroup::Mean(absl::string_view metric) const {
  double sum = 0;
  int count = 0;
  for (const SweptRun* run : runs) {
    const std::optional<double> value = run->ValueOf(metric);
    if (!value.has_value()) continue;
    sum += *value;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

std::optional<double> SweptGroup::Deviation(absl::string_view metric) const {
  const std::optional<double> mean = Mean(metric);
  double squares = 0;
  int count = 0;
  for (const SweptRun* run : runs) {
    const std::optional<double> value = run->ValueOf(metric);
    if (!value.has_value()) continue;
    squares += (*value - *mean) * (*value - *mean);
    ++count;
  }
  if (count < 2) return std::nullopt;
  return std::sqrt(squares / (count - 1));
}

std::vector<SweptGroup> GroupOverSeeds(absl::Span<const SweptFlag> flags,
                                       absl::Span<const SweptRun> runs) {
  std::vector<SweptGroup> groups;
  std::map<SweptValues, size_t> places;  // of the groups, by what their runs have in common
  for (const SweptRun& run : runs) {
    if (run.status != 0) continue;
    SweptValues common = run.values;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i].name == kSeed) common[i].clear();
    }
    const auto [place, is_new] = places.emplace(common, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].runs.push_back(&run);
  }
  return groups;
}

const SweptGroup* BestOf(absl::Span<const SweptGroup> groups, const std::string& metric) {
  const SweptGroup* best = nullptr;
  for (const SweptGroup& group : groups) {
    const std::optional<double> mean = group.Mean(metric);
    if (!mean.has_value() || std::isnan(*mean)) continue;
    if (best == nullptr || engine::IsBetter(metric, *mean, *best->Mean(metric))) best = &group;
  }
  return best;
}

std::string SweepText(absl::Span<const SweptFlag> flags, absl::Span<const SweptRun> runs,
                      const std::string& metric) {
  const std::vector<SweptGroup> groups = GroupOverSeeds(flags, runs);
  std::string text = RunsTable(flags, runs);
  if (groups.empty()) return text;
  if (SweepsSeeds(flags)) absl::StrAppend(&text, "\n", GroupsTable(flags, runs, groups));
  const SweptGroup* const best = BestOf(groups, metric);
  if (best == nullptr || groups.size() == 1) return text;
  absl::StrAppend(&text, "\nbest by ", engine::DescribeMetric(metric), ": ", NameOf(flags, *best),
                  "\n");
  return text;
}

nlohmann::ordered_json RunToJson(absl::Span<const SweptFlag> flags, const SweptRun& run) {
  ordered_json json = {{"event", "run"}, {"flags", ordered_json::object()}};
  for (size_t i = 0; i < flags.size(); ++i) json["flags"][flags[i].name] = run.values[i];
  json["status"] = run.status;
  if (!run.failure.empty()) json["failure"] = run.failure;
  for (const auto& [name, value] : run.metrics) json["metrics"][name] = value;
  json["seconds"] = run.seconds;
  return json;
}

nlohmann::ordered_json SweepToJson(absl::Span<const SweptFlag> flags,
                                   absl::Span<const SweptRun> runs, const std::string& metric) {
  const std::vector<SweptGroup> groups = GroupOverSeeds(flags, runs);
  ordered_json json = {{"event", "end"}, {"groups", ordered_json::array()}};
  for (const SweptGroup& group : groups) {
    ordered_json entry = {{"name", NameOf(flags, group)}, {"runs", group.runs.size()}};
    for (const std::string& name : MetricsOf(runs)) {
      if (const auto mean = group.Mean(name)) entry["mean"][name] = *mean;
      if (const auto deviation = group.Deviation(name)) entry["deviation"][name] = *deviation;
    }
    json["groups"].push_back(std::move(entry));
  }
  if (const SweptGroup* const best = BestOf(groups, metric)) json["best"] = NameOf(flags, *best);
  return json;
}

}  // namespace stagecoach::tools
