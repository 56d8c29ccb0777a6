#include "schedule/render/chart.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedule/render/html_assets.h"
#include "schedule/render/trace_style.h"
#include "schedule/traces/trace_parts.h"
#include "schedule/traces/trace_stash.h"

namespace stagecoach::schedule {
namespace {

// ---- Data for the script (html_assets.h): numbers, and names of our own ----

template <typename List, typename Format>
std::string JsonArray(const List& list, Format format) {
  return absl::StrCat("[", absl::StrJoin(list, ",", format), "]");
}

std::string BoxesJson(const std::vector<TimedAction>& list) {
  int64_t last_start_ns = 0;
  return JsonArray(SlicesOf(list), [&last_start_ns](std::string* json, const Slice& slice) {
    const TimedAction& timed = slice.timed;
    absl::StrAppend(json, "[", static_cast<int>(timed.action.op), ",", timed.action.stage.value(),
                    ",", timed.action.micro_batch.value(), ",", timed.start_ns - last_start_ns, ",",
                    timed.end_ns - timed.start_ns, ",", static_cast<int>(slice.track), "]");
    last_start_ns = timed.start_ns;
  });
}

// Prints enough digits for bytes to be exact.
std::string AmountJson(double amount) { return absl::StrFormat("%.15g", amount); }

std::string StashJson(const TraceStash& stash) {
  if (stash.ranks.empty()) return "null";
  const std::string ranks = JsonArray(stash.ranks, [](std::string* json, const RankStash& rank) {
    int64_t last_ns = 0;
    absl::StrAppend(json, R"({"peak":)", AmountJson(rank.peak), R"(,"at":)", rank.peak_ns,
                    R"(,"levels":)",
                    JsonArray(rank.levels,
                              [&last_ns](std::string* levels, const RankStash::Level& level) {
                                absl::StrAppend(levels, "[", level.from_ns - last_ns, ",",
                                                AmountJson(level.amount), "]");
                                last_ns = level.from_ns;
                              }),
                    "}");
  });
  return absl::StrCat(R"({"inBytes":)", stash.in_bytes ? "true" : "false", R"(,"ranks":)", ranks,
                      "}");
}

std::string DeliveriesJson(const Trace& trace, const std::vector<Delivery>& messages) {
  return JsonArray(messages, [&trace](std::string* json, const Delivery& message) {
    const TimedAction& send = trace.list_of(message.from)[message.send];
    const TimedAction& receive = trace.list_of(message.to)[message.receive];
    absl::StrAppend(json, "[", send.action.op == Op::kSendGradient ? 1 : 0, ",",
                    message.from.value(), ",", send.start_ns, ",", message.to.value(), ",",
                    receive.end_ns, "]");
  });
}

std::string CopiesJson(const Trace& trace) {
  std::vector<std::string> copies;
  for (size_t rank = 0; rank < trace.actions.size(); ++rank) {
    for (const CopySpan& copy : CopiesOf(trace.actions[rank])) {
      const Action& action = trace.actions[rank][copy.action].action;
      copies.push_back(absl::StrCat("[", static_cast<int>(action.op), ",", action.stage.value(),
                                    ",", rank, ",", copy.start_ns, ",", copy.end_ns, "]"));
    }
  }
  return absl::StrCat("[", absl::StrJoin(copies, ","), "]");
}

std::string TraceJson(const NamedTrace& named) {
  const Trace& trace = named.trace;
  // Escaped for markup, into which the script inserts it, and quoted as a string.
  const std::string name = nlohmann::json(EscapeMarkup(named.name))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return absl::StrCat(R"({"name":)", name, R"(,"step":)", trace.step_ns, R"(,"chunks":[)",
                      absl::StrJoin(ChunkOfStage(trace), ","), "],\n\"ranks\":[",
                      absl::StrJoin(trace.actions, ",\n",
                                    [](std::string* json, const std::vector<TimedAction>& list) {
                                      absl::StrAppend(json, BoxesJson(list));
                                    }),
                      "],\n\"stash\":", StashJson(StashOf(trace, named.unit_stash)),
                      ",\n\"messages\":", DeliveriesJson(trace, DeliveriesOf(trace)),
                      ",\n\"copies\":", CopiesJson(trace), "}");
}

int64_t LongestStepNs(absl::Span<const NamedTrace> traces) {
  int64_t longest_ns = 0;
  for (const NamedTrace& named : traces) longest_ns = std::max(longest_ns, named.trace.step_ns);
  return longest_ns;
}

std::string Data(absl::Span<const NamedTrace> traces) {
  std::vector<std::string> names;
  std::vector<std::string> colors;
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    names.push_back(absl::StrCat("\"", OpName(op), "\""));
    colors.push_back(absl::StrCat("\"", std::string(1, ColorOf(op)), "\""));
  }
  const int64_t step_ns = LongestStepNs(traces);
  const TimeUnit unit = UnitFor(step_ns);
  return absl::StrCat(R"({"step":)", step_ns, R"(,"unitNs":)", unit.ns, R"(,"unit":")", unit.name,
                      R"(","ops":[)", absl::StrJoin(names, ","), R"(],"colors":[)",
                      absl::StrJoin(colors, ","), "],\n\"traces\":[",
                      absl::StrJoin(traces, ",\n",
                                    [](std::string* json, const NamedTrace& named) {
                                      absl::StrAppend(json, TraceJson(named));
                                    }),
                      "]}");
}

// ---- Markup ----

std::string Swatches(char color, int num_chunks) {
  constexpr int kMaxShades = 4;
  const int shades = std::min(num_chunks, kMaxShades);
  std::string svg =
      absl::StrCat("<svg width=\"", shades * 12, "\" height=\"12\" aria-hidden=\"true\">");
  for (int i = 0; i < shades; ++i) {
    const int chunk = shades == 1 ? 0 : i * (num_chunks - 1) / (shades - 1);
    absl::StrAppend(&svg, "<rect class=\"", std::string(1, color), chunk, "\" x=\"", i * 12,
                    "\" width=\"12\" height=\"12\"/>");
  }
  return svg + "</svg>";
}

int MostChunks(absl::Span<const NamedTrace> traces) {
  int most = 1;
  for (const NamedTrace& named : traces) most = std::max(most, MaxChunks(named.trace));
  return most;
}

bool KnowStash(absl::Span<const NamedTrace> traces) {
  return std::any_of(traces.begin(), traces.end(), [](const NamedTrace& named) {
    return !StashOf(named.trace, named.unit_stash).ranks.empty();
  });
}

std::string Legend(absl::Span<const NamedTrace> traces) {
  const int num_chunks = MostChunks(traces);
  std::vector<const Trace*> all;
  for (const NamedTrace& named : traces) all.push_back(&named.trace);
  std::string legend = "<div class=\"legend\">";
  for (const LegendItem& item : LegendOf(all)) {
    absl::StrAppend(&legend, "<span>", Swatches(item.color, num_chunks), item.meaning, "</span>");
  }
  legend +=
      "<span><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"track\" "
      "width=\"12\" height=\"12\"/><rect fill=\"url(#idle)\" width=\"12\" height=\"12\"/></svg>"
      "idle</span>";
  if (KnowStash(traces)) {
    legend +=
        "<span><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"stash\" x=\"1\" "
        "y=\"3\" width=\"10\" height=\"8\"/><circle class=\"peak\" cx=\"6\" cy=\"3\" "
        "r=\"2.5\"/></svg>stash and its peak</span>";
  }
  if (num_chunks > 1) legend += "<span>shades: the rank's stages, first to last</span>";
  return legend + "</div>";
}

std::string Switch(absl::string_view name, bool is_on) {
  return absl::StrCat("<label><input type=\"checkbox\" id=\"", name, "\"", is_on ? " checked" : "",
                      ">", name, "</label>");
}

// Returns switches for what exists; off at first where it would hide everything else.
std::string Switches(absl::Span<const NamedTrace> traces) {
  constexpr size_t kMaxMessages = 2000;
  constexpr int kMaxRows = 16;
  size_t num_messages = 0;
  int num_rows = 0;
  for (const NamedTrace& named : traces) {
    num_messages += DeliveriesOf(named.trace).size();
    num_rows += named.trace.num_ranks();
  }
  return absl::StrCat(num_messages > 0 ? Switch("messages", num_messages <= kMaxMessages) : "",
                      KnowStash(traces) ? Switch("stash", num_rows <= kMaxRows) : "");
}

std::string Toolbar(absl::Span<const NamedTrace> traces) {
  return absl::StrCat(
      "<div class=\"bar\">", Legend(traces), "<div class=\"tools\">", Switches(traces),
      "<div class=\"buttons\"><button id=\"wider\" title=\"Zoom out (-)\" aria-label=\"Zoom "
      "out\">&minus;</button><button id=\"closer\" title=\"Zoom in (+)\" aria-label=\"Zoom "
      "in\">+</button><button id=\"all\" title=\"Show the whole step (0)\">all</button></div>"
      "<div class=\"buttons\"><button id=\"save-svg\" title=\"Save what is shown as an SVG "
      "file\">Save as SVG</button><button id=\"save-png\" title=\"Save what is shown as a PNG "
      "file\">Save as PNG</button></div></div></div>");
}

}  // namespace

const char kChartHelp[] =
    "<p class=\"help\">Wheel or <kbd>+</kbd> <kbd>&minus;</kbd> zoom, drag or <kbd>&larr;</kbd> "
    "<kbd>&rarr;</kbd> move, double click or <kbd>0</kbd> shows the whole step. Pointing at a box "
    "outlines its micro-batch on every rank. Where passes have no room they are bands, as high as "
    "their shares of the time, without messages: zoom in to see each.</p>";

std::string ChartStyle(absl::Span<const NamedTrace> traces, absl::string_view more) {
  return absl::StrCat("<style>", kPageStyle, more, "</style>\n<style id=\"look\">",
                      StyleRules(MostChunks(traces)), "</style>\n");
}

std::string ChartMarkup(absl::Span<const NamedTrace> traces) {
  return absl::StrCat(
      Toolbar(traces),
      "\n<svg id=\"chart\" tabindex=\"0\" role=\"img\" aria-label=\"What every rank does at every "
      "time of the step\"></svg>\n<noscript><p class=\"bar\">The picture is drawn by a script, and "
      "scripts are switched off.</p></noscript>");
}

std::string ChartScript(absl::Span<const NamedTrace> traces) {
  return absl::StrCat("<div id=\"tip\" hidden></div>\n<script>\nconst D =\n", Data(traces), "\n;",
                      kPageScript, "</script>");
}

}  // namespace stagecoach::schedule
