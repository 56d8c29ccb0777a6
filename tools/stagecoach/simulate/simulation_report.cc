#include "tools/stagecoach/simulate/simulation_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "schedule/render/html.h"

namespace stagecoach::tools {
namespace {

using schedule::RankTimes;
using schedule::Simulation;

double Milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string ShareOfStep(int64_t ns, const Simulation& simulation) {
  if (simulation.step_ns == 0) return "-";
  return base::FormatPercent(static_cast<double>(ns) / static_cast<double>(simulation.step_ns), 2);
}

std::vector<std::string> Columns(const SimulatedSchedule& simulated) {
  std::vector<std::string> columns = {"rank",      "busy",          "idle",      "dependency",
                                      "imbalance", "communication", "peak stash"};
  if (KnowsSizes(simulated)) columns.emplace_back("peak");
  return columns;
}

std::vector<std::string> RowOf(const SimulatedSchedule& simulated, size_t rank) {
  const RankTimes& times = simulated.simulation.ranks[rank];
  std::vector<std::string> row = {absl::StrCat(rank),
                                  FormatMs(times.busy_ns),
                                  ShareOfStep(times.idle_ns(), simulated.simulation),
                                  FormatMs(times.dependency_ns),
                                  FormatMs(times.imbalance_ns),
                                  FormatMs(times.communication_ns),
                                  KnowsSizes(simulated)
                                      ? base::FormatBytes(times.peak_stash_bytes)
                                      : absl::StrFormat("%.4g", simulated.peak_stash[rank])};
  if (KnowsSizes(simulated)) row.push_back(base::FormatBytes(times.peak_bytes));
  return row;
}

}  // namespace

std::string Title(const SimulatedSchedule& simulated) {
  const schedule::Schedule& schedule = simulated.as_given;
  const int chunks = schedule.num_stages() / schedule.num_ranks();
  const int devices = schedule.num_ranks(), micro_batches = schedule.num_micro_batches;
  return absl::StrCat(schedule.name, ": ", devices, devices == 1 ? " device" : " devices",
                      chunks > 1 ? absl::StrCat(", ", chunks, " chunks each") : "", ", ",
                      micro_batches, micro_batches == 1 ? " micro-batch" : " micro-batches");
}

double IdleRate(const schedule::Simulation& simulation) {
  if (simulation.step_ns == 0) return 0.0;
  int64_t idle_ns = 0;
  for (const RankTimes& times : simulation.ranks) idle_ns += times.idle_ns();
  return static_cast<double>(idle_ns) / static_cast<double>(simulation.step_ns) /
         static_cast<double>(simulation.ranks.size());
}

std::string FormatMs(int64_t ns) { return absl::StrFormat("%.3f ms", Milliseconds(ns)); }

bool KnowsSizes(const SimulatedSchedule& simulated) {
  return simulated.simulation.ranks[0].peak_bytes > 0;
}

nlohmann::ordered_json ToJson(const SimulatedSchedule& simulated) {
  const schedule::Schedule& schedule = simulated.as_given;
  const Simulation& simulation = simulated.simulation;
  nlohmann::ordered_json json = {{"schedule", schedule.name},
                                 {"devices", schedule.num_ranks()},
                                 {"chunks", schedule.num_stages() / schedule.num_ranks()},
                                 {"stages", schedule.num_stages()},
                                 {"micro_batches", schedule.num_micro_batches},
                                 {"step_ms", Milliseconds(simulation.step_ns)},
                                 {"span_ms", Milliseconds(simulation.span_ns)},
                                 {"bubble_rate", simulation.bubble_rate}};
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankTimes& times = simulation.ranks[r];
    std::vector<int> stages;
    for (const schedule::StageId stage : schedule.StagesOf(schedule::Rank(static_cast<int>(r)))) {
      stages.push_back(stage.value());
    }
    nlohmann::ordered_json rank = {{"rank", r},
                                   {"stages", std::move(stages)},
                                   {"busy_ms", Milliseconds(times.busy_ns)},
                                   {"idle_ms",
                                    {{"dependency", Milliseconds(times.dependency_ns)},
                                     {"imbalance", Milliseconds(times.imbalance_ns)},
                                     {"communication", Milliseconds(times.communication_ns)}}},
                                   {"peak_stash", simulated.peak_stash[r]}};
    if (KnowsSizes(simulated)) {
      rank["peak_stash_bytes"] = times.peak_stash_bytes;
      rank["peak_bytes"] = times.peak_bytes;
    }
    ranks.push_back(std::move(rank));
  }
  json["ranks"] = std::move(ranks);
  return json;
}

std::string ToText(const SimulatedSchedule& simulated, const schedule::TimelineOptions& timeline) {
  const Simulation& simulation = simulated.simulation;
  std::vector<base::TextTable::Column> headers;
  for (const std::string& column : Columns(simulated)) {
    headers.push_back({column, base::TextTable::Align::kRight});
  }
  base::TextTable table(std::move(headers));
  for (size_t r = 0; r < simulation.ranks.size(); ++r) table.AddRow(RowOf(simulated, r));
  return absl::StrCat(base::EscapeControls(Title(simulated)), "\n\n",
                      schedule::ToTimeline(simulation.trace, timeline), "\n", table.ToString(),
                      "\nstep ", FormatMs(simulation.step_ns), ", of which ranks are idle ",
                      base::FormatPercent(IdleRate(simulation), 2), " on average\n",
                      "longest span of a rank ", FormatMs(simulation.span_ns), ", bubble ",
                      base::FormatPercent(simulation.bubble_rate, 2), " of it\n");
}

std::string ToHtml(const SimulatedSchedule& simulated) {
  const Simulation& simulation = simulated.simulation;
  schedule::PageText text;
  text.title = Title(simulated);
  text.facts = {{"step", FormatMs(simulation.step_ns)},
                {"longest span of a rank", FormatMs(simulation.span_ns)},
                {"bubble of it", base::FormatPercent(simulation.bubble_rate, 2)},
                {"idle, of the step", base::FormatPercent(IdleRate(simulation), 2)}};
  text.columns = Columns(simulated);
  for (size_t r = 0; r < simulation.ranks.size(); ++r) text.rows.push_back(RowOf(simulated, r));
  return schedule::ToHtml({{"", simulation.trace, simulated.unit_stash}}, text);
}

}  // namespace stagecoach::tools
