#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "engine/diagnosis/flight_recorders.h"
#include "schedule/render/html.h"
#include "schedule/render/timeline.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/traces/trace_diff.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {
namespace {

struct TraceCommandOptions {
  CLI::App* diff = nullptr;
  CLI::App* show = nullptr;
  CLI::App* merge = nullptr;
  std::string simulated, measured;  // of diff, in either order
  bool json = false;                // of all
  std::string trace;                // of show
  std::string html;                 // of both
  std::string recorders;            // of merge
  std::string output;
};

struct TraceFile {
  std::string path;
  schedule::Trace trace;
};

absl::StatusOr<TraceFile> Read(const std::string& path) {
  ASSIGN_OR_RETURN(schedule::Trace trace, schedule::ReadTrace(path));
  return TraceFile{path, std::move(trace)};
}

bool AreOfOneKind(const TraceFile& a, const TraceFile& b) {
  return a.trace.source == b.trace.source;
}

std::string DiffPage(const TraceFile& simulated, const TraceFile& measured,
                     const schedule::TraceDiff& diff) {
  const auto name = [](const TraceFile& file) {
    return absl::StrCat(file.trace.source, ": ", file.path);
  };
  const bool are_of_one_kind = AreOfOneKind(simulated, measured);
  const std::string first = are_of_one_kind ? "above" : "simulated";
  const std::string second = are_of_one_kind ? "below" : "measured";
  const schedule::TimeTable causes = CausesOf(diff);
  const std::vector<std::string>& sum = causes.rows.back();
  schedule::PageText text;
  text.title = absl::StrCat(simulated.trace.name, ": ", simulated.trace.source, " and ",
                            measured.trace.source);
  text.facts = {{absl::StrCat("step ", first), absl::StrCat(sum[1], " ", causes.unit)},
                {second, absl::StrCat(sum[2], " ", causes.unit)},
                {"difference", absl::StrCat(sum[3], " ", causes.unit)}};
  text.columns = {absl::StrCat("what a rank spends the step on (", causes.unit, ", mean)"), first,
                  second, "difference"};
  text.rows = causes.rows;
  return schedule::ToHtml({{name(simulated), simulated.trace}, {name(measured), measured.trace}},
                          text);
}

absl::StatusOr<int> Diff(const TraceCommandOptions& options) {
  ASSIGN_OR_RETURN(TraceFile simulated, Read(options.simulated));
  ASSIGN_OR_RETURN(TraceFile measured, Read(options.measured));
  // Files themselves say which they are.
  if (simulated.trace.source == "measured" && measured.trace.source == "simulated") {
    std::swap(simulated, measured);
  }
  ASSIGN_OR_RETURN(const schedule::TraceDiff diff,
                   schedule::DiffTraces(simulated.trace, measured.trace));
  if (AreOfOneKind(simulated, measured)) {
    PrintNotice(absl::StrCat("both traces are ", simulated.trace.source, ": ", simulated.path,
                             " takes the place of the simulated one, ", measured.path,
                             " that of the measured one"));
  }
  if (!options.html.empty()) {
    RETURN_IF_ERROR(base::WriteFileAtomically(options.html, DiffPage(simulated, measured, diff)));
  }
  if (options.json) {
    PrintJsonLine(ToJson(diff));
  } else {
    absl::PrintF("%s", base::EscapeControls(ToText(diff)));
  }
  return kExitOk;
}

nlohmann::ordered_json SummaryToJson(const schedule::Trace& trace) {
  const std::vector<schedule::TimeSplit> splits = SplitByCause(trace);
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (schedule::Rank rank(0); rank.value() < trace.num_ranks(); ++rank) {
    std::vector<size_t> stages;
    for (size_t stage = 0; stage < trace.rank_of_stage.size(); ++stage) {
      if (trace.rank_of_stage[stage] == rank) stages.push_back(stage);
    }
    ranks.push_back({{"rank", rank.value()},
                     {"stages", std::move(stages)},
                     {"actions", trace.list_of(rank).size()},
                     {"busy_ns", splits[static_cast<size_t>(rank.value())].compute_ns()}});
  }
  return {{"schedule", trace.name},
          {"source", trace.source},
          {"micro_batches", trace.num_micro_batches},
          {"step_ns", trace.step_ns},
          {"ranks", std::move(ranks)}};
}

absl::StatusOr<int> Show(const TraceCommandOptions& options) {
  ASSIGN_OR_RETURN(const schedule::Trace trace, schedule::ReadTrace(options.trace));
  const std::string title = absl::StrCat(trace.name, ", ", trace.source);
  const std::string step = base::FormatDuration(absl::Nanoseconds(trace.step_ns));
  const schedule::TimeTable times = RankTimesOf(trace);
  if (!options.html.empty()) {
    schedule::PageText text;
    text.title = title;
    text.facts = {{"step", step}};
    text.columns = times.columns;
    text.columns[0] = absl::StrCat("rank (times in ", times.unit, ")");
    text.rows = times.rows;
    RETURN_IF_ERROR(base::WriteFileAtomically(options.html, ToHtml({{"", trace}}, text)));
  }
  if (options.json) {
    PrintJsonLine(SummaryToJson(trace));
    return kExitOk;
  }
  absl::PrintF("%s: step %s\n\n%s\nWhat each rank spends the step on (%s)\n%s",
               base::EscapeControls(title), step, schedule::ToTimeline(trace, TerminalTimeline()),
               times.unit, ToText(times));
  return kExitOk;
}

absl::StatusOr<int> Merge(const TraceCommandOptions& options) {
  ASSIGN_OR_RETURN(const engine::Diagnosis diagnosis, engine::Diagnose(options.recorders));
  if (!options.output.empty()) {
    RETURN_IF_ERROR(base::WriteFileAtomically(options.output, diagnosis.trace));
  }
  const engine::FirstStalledRank& stop = diagnosis.stop;
  if (options.json) {
    PrintJsonLine({{"devices", stop.devices}, {"place", stop.place}, {"sentence", stop.sentence}});
    return kExitOk;
  }
  absl::PrintF("%s\n", stop.sentence.empty() ? "no rank has begun a step"
                                             : base::EscapeControls(stop.sentence));
  return kExitOk;
}

absl::StatusOr<int> RunTrace(const TraceCommandOptions& options) {
  if (options.diff->parsed()) return Diff(options);
  if (options.show->parsed()) return Show(options);
  if (options.merge->parsed()) return Merge(options);
  return base::UsageError(
      "a trace command is needed: diff, show or merge (see "
      "stagecoach trace --help)");
}

}  // namespace

Command AddTraceCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("trace", "Compare or draw traces of runs");
  const auto options = std::make_shared<TraceCommandOptions>();
  options->diff = flags->add_subcommand(
      "diff", "Show where a measured run differs from the simulated one, by cause");
  options->diff->add_option("simulated", options->simulated, "Trace of a simulation")->required();
  options->diff
      ->add_option("measured", options->measured, "Trace of a run; also the other way round")
      ->required();
  AddOutput(*options->diff, "--html", "FILE", options->html,
            "Write a page with both timelines, one above the other");
  options->show = flags->add_subcommand("show", "Draw a trace");
  options->show->add_option("trace", options->trace, "The trace")->required();
  AddOutput(*options->show, "--html", "FILE", options->html, "Write a page to explore it");
  options->merge = flags->add_subcommand(
      "merge", "Find the rank that stopped first, from the flight recorders of a run");
  options->merge
      ->add_option("folder", options->recorders, "The folder that STAGECOACH_RINGS named to them")
      ->required();
  AddOutput(*options->merge, "--output", "FILE", options->output,
            "Write the merged trace of all ranks");
  for (CLI::App* const command : {options->diff, options->show, options->merge}) {
    command->add_flag("--json", options->json, "Print one JSON object");
  }
  return {flags, [options] { return RunTrace(*options); }};
}

}  // namespace stagecoach::tools
