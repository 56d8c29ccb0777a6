#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "partition/report/evaluation_parts.h"
#include "partition/report/evaluation_report.h"
#include "partition/report/page_style.h"
#include "schedule/render/chart.h"
#include "schedule/render/html.h"
#include "schedule/render/trace_style.h"

namespace stagecoach::partition {
namespace {

using schedule::EscapeMarkup;
using schedule::Rank;
using schedule::StageId;

// Escapes the text of a page, and keeps a number and its percent sign together.
std::string Text(const std::string& text) {
  return absl::StrReplaceAll(EscapeMarkup(text), {{" %", "&nbsp;%"}});
}

// Returns "gpu0"; for devices with numbers as names, "device 0" or "devices 0-3".
std::string DeviceLabel(const PlanEvaluation& evaluation, Rank rank) {
  const std::string name = DevicesOf(evaluation, rank);
  if (name.find_first_not_of("0123456789-") != std::string::npos) return name;
  return absl::StrCat(evaluation.plan().replicas() == 1 ? "device " : "devices ", name);
}

// A share of a bar: its meaning, its color (a custom property of the style), its size.
struct Part {
  absl::string_view name;
  absl::string_view color;
  int64_t size = 0;
};

std::vector<Part> PartsOf(const RankMemory& memory) {
  return {{"weights", "--weights", memory.parameters},
          {"gradients", "--gradients", memory.gradients},
          {"optimizer", "--optimizer", memory.optimizer},
          {"stash", "--stash", memory.stash},
          {"buffers", "--buffers", memory.buffers}};
}

std::vector<Part> PartsOf(const StageCost& stage) {
  return {{"forward", "--forward", stage.forward_ns},
          {"backward", "--backward", stage.backward_ns},
          {"messages", "--messages", stage.receive_ns + stage.send_ns}};
}

std::string Counted(int64_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(base::FormatCount(count), " ", count == 1 ? one : many);
}

std::string Legend(const std::vector<Part>& parts) {
  std::string html = "<div class=\"legend\">";
  for (const Part& part : parts) {
    absl::StrAppend(&html, "<span><i class=\"swatch\" style=\"background:var(", part.color,
                    ")\"></i>", part.name, "</span>");
  }
  return html + "</div>";
}

// Draws a stacked bar of which `whole` is the full width, with a mark at `limit` unless that is 0.
template <typename Format>
std::string Meter(const std::vector<Part>& parts, int64_t whole, int64_t limit, Format format) {
  const auto percent = [whole](int64_t size) {
    return absl::StrFormat("%.3f%%", 100.0 * static_cast<double>(size) /
                                         static_cast<double>(std::max<int64_t>(1, whole)));
  };
  std::string html = "<div class=\"meter\">";
  for (const Part& part : parts) {
    if (part.size == 0) continue;
    absl::StrAppend(&html, "<i style=\"width:", percent(part.size), ";background:var(", part.color,
                    ")\" title=\"", part.name, " ", format(part.size), "\"></i>");
  }
  if (limit > 0) {
    absl::StrAppend(&html, "<u style=\"left:", percent(limit), "\" title=\"limit ", format(limit),
                    "\"></u>");
  }
  return html + "</div>";
}

// ---- Headline ----

std::string Tile(absl::string_view label, const std::string& value, const std::string& note) {
  return absl::StrCat("<div><dt>", label, "</dt><dd>", Text(value), "<small>", Text(note),
                      "</small></dd></div>");
}

std::string RowsPerSecond(const PlanEvaluation& evaluation) {
  const double seconds = static_cast<double>(evaluation.simulation.step_ns) / 1e9;
  if (seconds <= 0) return "";
  const double rows = static_cast<double>(evaluation.plan().batch_rows()) / seconds;
  return absl::StrCat(
      rows >= 100 ? base::FormatCount(static_cast<int64_t>(rows)) : absl::StrFormat("%.1f", rows),
      " rows/s");
}

std::string FullestTile(const PlanEvaluation& evaluation) {
  Rank fullest(0);
  const auto use = [&evaluation](Rank rank) {
    const RankMemory memory = MemoryOf(evaluation, rank);
    const double peak = static_cast<double>(memory.peak);
    return memory.limit > 0 ? std::pair(peak / static_cast<double>(memory.limit), peak)
                            : std::pair(0.0, peak);
  };
  for (Rank rank(1); rank.value() < evaluation.plan().num_ranks(); ++rank) {
    if (use(rank) > use(fullest)) fullest = rank;
  }
  const RankMemory memory = MemoryOf(evaluation, fullest);
  const std::string use_text = memory.limit > 0
                                   ? absl::StrCat(": ", base::FormatPercent(use(fullest).first),
                                                  " of ", base::FormatBytes(memory.limit))
                                   : ", no limit";
  return Tile("fullest device", base::FormatBytes(memory.peak),
              absl::StrCat(DeviceLabel(evaluation, fullest), use_text));
}

std::string Tiles(const PlanEvaluation& evaluation) {
  const Plan& plan = evaluation.plan();
  const bool has_bound = evaluation.considered > 0;
  const std::string step = Headline(static_cast<double>(evaluation.simulation.step_ns));
  std::string tiles = Tile("step", step, RowsPerSecond(evaluation));
  if (evaluation.objective == PlanObjective::kBottleneck) {
    tiles += Tile("bottleneck", Headline(evaluation.objective_ns), "per step of the busiest rank");
  }
  if (has_bound) {
    tiles += Tile("lower bound", Headline(evaluation.lower_bound_ns), "no plan is faster") +
             Tile("gap", base::FormatPercent(evaluation.gap()), "the most that is left to gain");
  }
  const int chunks = evaluation.choice.chunks;
  tiles += Tile("schedule", plan.schedule.name,
                absl::StrCat(Counted(plan.num_stages(), "stage", "stages"),
                             chunks > 1 ? absl::StrCat(", ", chunks, " per rank") : ""));
  tiles += Tile("micro-batches", absl::StrCat(plan.micro_batches()),
                absl::StrCat("of ", Counted(plan.micro_batch_rows, "row", "rows"), ", ",
                             base::FormatCount(plan.batch_rows()), " a step"));
  tiles += Tile("devices", absl::StrCat(plan.num_devices()),
                plan.replicas() > 1 ? absl::StrCat(Counted(plan.num_ranks(), "rank", "ranks"), ", ",
                                                   plan.replicas(), " replicas")
                                    : "one per rank");
  return absl::StrCat("<dl class=\"card tiles\">", tiles, FullestTile(evaluation), "</dl>\n");
}

// ---- Memory and reasons ----

constexpr int kFewRanks = 12;  // their bars fit next to the reasons

// Shortens a bar's label before its end, which tells devices apart.
std::string BarLabel(const std::string& device) {
  constexpr size_t kEndColumns = 8;
  const size_t width = base::Width(device);
  const auto [start, end] = base::SplitAt(device, width - std::min(width, kEndColumns));
  return absl::StrCat("<b><span class=\"start\">", EscapeMarkup(std::string(start)),
                      "</span><span class=\"end\">", EscapeMarkup(std::string(end)), "</span></b>");
}

std::string Bars(const PlanEvaluation& evaluation) {
  std::vector<RankMemory> memory;
  int64_t whole = 0;
  for (Rank rank(0); rank.value() < evaluation.plan().num_ranks(); ++rank) {
    memory.push_back(MemoryOf(evaluation, rank));
    whole = std::max({whole, memory.back().peak, memory.back().limit});
  }
  std::string html;
  for (Rank rank(0); rank.value() < evaluation.plan().num_ranks(); ++rank) {
    const RankMemory& own = memory[static_cast<size_t>(rank.value())];
    const bool is_over = own.limit > 0 && own.peak > own.limit;
    const std::string device = DeviceLabel(evaluation, rank);
    absl::StrAppend(&html, "<div class=\"device", is_over ? " over" : "", "\"><div title=\"",
                    EscapeMarkup(device), "\">", BarLabel(device), " <span>",
                    evaluation.compiled.of(rank).stages.size() == 1 ? "stage " : "stages ",
                    StagesOf(evaluation, rank), "</span></div>",
                    Meter(PartsOf(own), whole, own.limit, base::FormatBytes),
                    "<div class=\"amount\">", base::FormatBytes(own.peak), "<span>",
                    own.limit > 0 ? absl::StrCat(" of ", base::FormatBytes(own.limit)) : "",
                    "</span></div></div>\n");
  }
  return absl::StrCat("<section class=\"card\"><div class=\"head\"><h2>Memory</h2>",
                      Legend(PartsOf(RankMemory())), "</div><div class=\"bars",
                      evaluation.plan().num_ranks() > kFewRanks ? " many" : "", "\">", html,
                      "</div></section>\n");
}

std::string Why(const PlanEvaluation& evaluation) {
  std::string facts;
  const auto add = [&facts](absl::string_view label, const std::string& html) {
    absl::StrAppend(&facts, "<div><dt>", label, "</dt><dd>", html, "</dd></div>");
  };
  if (evaluation.runner_up.has_value()) {
    add("runner-up", absl::StrCat(Text(RunnerUp(evaluation)), "<div class=\"note\">",
                                  Text(evaluation.runner_up_reason), "</div>"));
  }
  if (!evaluation.changes.empty()) {
    std::string items;
    for (const std::string& change : evaluation.changes) {
      absl::StrAppend(&items, "<li>", Text(change), "</li>");
    }
    add("what would change it", absl::StrCat("<ul>", items, "</ul>"));
  }
  const Plan& plan = evaluation.plan();
  if (!plan.recomputed.empty()) {
    add("recomputed",
        absl::StrCat(Counted(static_cast<int64_t>(plan.recomputed.size()), "layer", "layers"),
                     " of ", plan.num_layers, ": ", Ranges(plan.recomputed)));
  }
  if (MostHostBytes(evaluation.compiled) > 0) add("offloaded", Offloads(evaluation));
  if (!evaluation.left_out.empty()) add("left out", Text(LeftOut(evaluation)));
  if (evaluation.considered > 0) add("planned in", Effort(evaluation));
  if (facts.empty()) return "";
  return absl::StrCat(
      "<section class=\"card\"><div class=\"head\"><h2>Why this plan</h2></div>"
      "<div class=\"why\"><dl>",
      facts, "</dl></div></section>\n");
}

// ---- Tables ----

std::string Header(const std::vector<std::string>& columns, size_t left) {
  std::string row = "<thead><tr>";
  for (size_t i = 0; i < columns.size(); ++i) {
    absl::StrAppend(&row, i < left ? "<th class=\"left\">" : "<th>", columns[i], "</th>");
  }
  return row + "</tr></thead>";
}

std::string TableCard(absl::string_view title, const std::string& legend, const std::string& header,
                      const std::string& rows) {
  return absl::StrCat("<section class=\"card\"><div class=\"head\"><h2>", title, "</h2>", legend,
                      "</div><div class=\"scroll\"><table>", header, "<tbody>", rows,
                      "</tbody></table></div></section>\n");
}

std::string Name(const std::string& name) {
  constexpr size_t kNameColumns = 30;
  return absl::StrCat("<td class=\"left name\" title=\"", EscapeMarkup(name), "\">",
                      EscapeMarkup(base::ElidedInMiddle(name, kNameColumns)), "</td>");
}

std::string LayersOf(const PlanEvaluation& evaluation, const StageReport& stage) {
  const auto name = [&evaluation](int layer) {
    return evaluation.layer_names[static_cast<size_t>(layer)];
  };
  if (stage.first_layer == stage.last_layer) return name(stage.first_layer);
  return absl::StrCat(name(stage.first_layer), " \xE2\x80\xA6 ", name(stage.last_layer));
}

std::string HtmlStageTable(const PlanEvaluation& evaluation) {
  const schedule::TimeUnit unit = schedule::UnitFor(evaluation.simulation.step_ns);
  const auto in_unit = [&unit](int64_t ns) { return InUnit(ns, unit); };
  int64_t longest_ns = 0;
  for (const StageCost& stage : evaluation.stages) {
    longest_ns = std::max(longest_ns,
                          stage.forward_ns + stage.backward_ns + stage.receive_ns + stage.send_ns);
  }
  std::string rows;
  for (StageId id(0); id.value() < evaluation.plan().num_stages(); ++id) {
    const StageCost& stage = evaluation.stages[static_cast<size_t>(id.value())];
    const StageReport& report = evaluation.compiled.of(id);
    const std::vector<std::string> cells = {in_unit(stage.forward_ns),
                                            in_unit(stage.backward_ns),
                                            in_unit(stage.update_ns),
                                            in_unit(stage.receive_ns),
                                            in_unit(stage.send_ns),
                                            absl::StrCat(stage.in_flight),
                                            base::FormatPercent(stage.idle_share)};
    absl::StrAppend(&rows, "<tr><td class=\"left\">", id.value(), "</td>",
                    Name(DevicesOf(evaluation, evaluation.plan().schedule.rank_of(id))),
                    "<td class=\"left\">", report.first_layer, "&ndash;", report.last_layer,
                    "</td>", Name(LayersOf(evaluation, report)), "<td class=\"left\">",
                    Meter(PartsOf(stage), longest_ns, 0, in_unit), "</td><td>",
                    absl::StrJoin(cells, "</td><td>"), "</td></tr>\n");
  }
  return TableCard("Stages",
                   absl::StrCat("<span class=\"note\">times in ", unit.name,
                                ", of one micro-batch; the update once per step</span>",
                                Legend(PartsOf(StageCost()))),
                   Header({"stage", "device", "layers", "names", "time", "forward", "backward",
                           "update", "receive", "send", "in flight", "idle"},
                          5),
                   rows);
}

std::string HtmlMemoryTable(const PlanEvaluation& evaluation) {
  std::string rows;
  for (Rank rank(0); rank.value() < evaluation.plan().num_ranks(); ++rank) {
    const RankMemory memory = MemoryOf(evaluation, rank);
    std::vector<std::string> cells;
    for (const Part& part : PartsOf(memory)) cells.push_back(base::FormatBytes(part.size));
    cells.push_back(base::FormatBytes(memory.peak));
    cells.push_back(memory.limit > 0 ? base::FormatBytes(memory.limit) : "none");
    absl::StrAppend(&rows, "<tr>", Name(DevicesOf(evaluation, rank)), "<td class=\"left\">",
                    StagesOf(evaluation, rank), "</td><td>", absl::StrJoin(cells, "</td><td>"),
                    "</td></tr>\n");
  }
  return TableCard("Memory of each device", "",
                   Header({"device", "stages", "weights", "gradients", "optimizer", "stash",
                           "buffers", "peak", "limit"},
                          2),
                   rows);
}

std::string Comparison(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared) {
  if (compared.empty()) return "";
  const std::vector<std::vector<std::string>> cells = ComparisonCells(evaluation, compared);
  std::string rows;
  for (size_t row = 1; row < cells.size(); ++row) {
    const bool is_over = cells[row].back() == "no";
    absl::StrAppend(&rows, "<tr>", Name(cells[row][0]), "<td class=\"left\">", cells[row][1],
                    "</td>");
    for (size_t i = 2; i + 1 < cells[row].size(); ++i) {
      absl::StrAppend(&rows, "<td>", Text(cells[row][i]), "</td>");
    }
    absl::StrAppend(&rows, is_over ? "<td class=\"over\">" : "<td>", cells[row].back(),
                    "</td></tr>\n");
  }
  return TableCard("Compared with other plans", "", Header(cells.front(), 2), rows);
}

std::string Timeline(const schedule::Trace& trace) {
  if (trace.actions.empty()) return "";
  return absl::StrCat("<section class=\"card\"><div class=\"head\"><h2>One step</h2></div>",
                      schedule::ChartMarkup({{"", trace}}), schedule::kChartHelp, "</section>\n");
}

}  // namespace

PageParts PagePartsOf(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared) {
  const schedule::Trace& trace = evaluation.simulation.trace;
  const std::string why = Why(evaluation);
  const bool is_beside = !why.empty() && evaluation.plan().num_ranks() <= kFewRanks;
  return {.style = schedule::ChartStyle({{"", trace}}, kEvaluationStyle),
          .tiles = Tiles(evaluation),
          .memory = absl::StrCat("<div class=\"pair", is_beside ? " few" : "", "\">",
                                 Bars(evaluation), why, "</div>\n"),
          .details = absl::StrCat(Comparison(evaluation, compared), Timeline(trace),
                                  HtmlStageTable(evaluation), HtmlMemoryTable(evaluation)),
          .script = trace.actions.empty() ? "" : schedule::ChartScript({{"", trace}})};
}

std::string ToHtml(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared) {
  const std::string title =
      evaluation.model.empty() ? "Plan" : absl::StrCat("Plan for ", evaluation.model);
  const std::string transfers = GroupedTransfers(evaluation);
  const PageParts parts = PagePartsOf(evaluation, compared);
  return schedule::HtmlDocument(
      title, parts.style,
      absl::StrCat("<header><h1>", EscapeMarkup(title), "</h1><p>",
                   EscapeMarkup(evaluation.choice.ToString()),
                   transfers.empty() ? "" : ", transfers ", transfers, "</p></header>\n<main>\n",
                   parts.tiles, parts.memory, parts.details, "</main>\n", parts.script));
}

}  // namespace stagecoach::partition
