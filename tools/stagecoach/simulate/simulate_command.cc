#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "schedule/io/schedule_file.h"
#include "schedule/render/svg.h"
#include "schedule/simulate/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/transforms/lowering.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/simulate/schedule_comparison.h"
#include "tools/stagecoach/simulate/simulated_schedule.h"
#include "tools/stagecoach/simulate/simulation_report.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"
#include "tools/stagecoach/values/schedule_option.h"

namespace stagecoach::tools {
namespace {

using schedule::Sends;

constexpr int kMaxSimulated = 1 << 20;

struct SimulateCommandOptions {
  ScheduleRequest request;  // without the two that may be lists:
  std::vector<std::string> schedules = {ScheduleRequest().schedule};
  std::vector<int> micro_batches;
  bool json = false;
  bool lower = false;
  // Files to write; "": none.
  std::string html, svg, trace, save;
};

absl::StatusOr<Sends> ParseSends(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"buffered", "rendezvous", "blocking", "grouped"}).status());
  if (name == "rendezvous") return Sends::kRendezvous;
  if (name == "grouped") return Sends::kGrouped;
  return name == "blocking" ? Sends::kBlocking : Sends::kBuffered;
}

absl::StatusOr<std::optional<schedule::OrderObjective>> ParseOrderObjective(
    const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"step", "span"}).status());
  return name == "step" ? schedule::OrderObjective::kStep : schedule::OrderObjective::kSpan;
}

// Parses one schedule, or several separated by commas; a file may have commas in its name.
absl::StatusOr<std::vector<std::string>> ParseSchedules(const std::string& text) {
  if (schedule::IsScheduleFile(text) && base::Exists(text)) return std::vector{text};
  return ParseList(text, ParseScheduleOption);
}

bool Compares(const SimulateCommandOptions& options) {
  return options.schedules.size() > 1 || options.micro_batches.size() > 1;
}

absl::Status CheckIsOfOne(const char* flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  return base::UsageError(absl::StrCat(
      flag, " is of one schedule: give one --schedule and one number of --micro-batches"));
}

// Checks paths before a search that may take a while.
absl::Status CheckPaths(const SimulateCommandOptions& options) {
  for (const std::string& path : {options.html, options.svg, options.trace, options.save}) {
    if (!path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const SimulateCommandOptions& options, const SimulatedSchedule& found) {
  const schedule::Trace& trace = found.simulation.trace;
  if (!options.html.empty()) {
    RETURN_IF_ERROR(base::WriteFileAtomically(options.html, ToHtml(found)));
  }
  if (!options.svg.empty()) {
    RETURN_IF_ERROR(
        base::WriteFileAtomically(options.svg, schedule::ToSvg(trace, {.title = Title(found)})));
  }
  if (!options.trace.empty()) RETURN_IF_ERROR(schedule::WriteTrace(trace, options.trace));
  if (!options.save.empty()) {
    schedule::Schedule saved = options.lower ? found.lowered : found.as_given;
    // The same as plan --export torch-lowered: PyTorch divides gradients where it sums them.
    if (options.lower) schedule::AddReductions(saved);
    RETURN_IF_ERROR(schedule::WriteScheduleFile(options.save, saved));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunComparison(const SimulateCommandOptions& options) {
  RETURN_IF_ERROR(CheckIsOfOne("--svg", options.svg));
  RETURN_IF_ERROR(CheckIsOfOne("--trace", options.trace));
  RETURN_IF_ERROR(CheckIsOfOne("--save", options.save));
  RETURN_IF_ERROR(CheckPaths(options));
  ASSIGN_OR_RETURN(const ScheduleComparison comparison,
                   CompareSchedules(options.request, options.schedules, options.micro_batches));
  if (!options.html.empty()) {
    RETURN_IF_ERROR(base::WriteFileAtomically(options.html, ToHtml(comparison)));
  }
  if (options.json) {
    PrintJsonLine(ToJson(comparison));
  } else {
    absl::PrintF("%s", ToText(comparison));
  }
  if (comparison.best.has_value()) return kExitOk;
  return absl::InvalidArgumentError("none of these can be performed");
}

absl::StatusOr<int> RunSimulation(const SimulateCommandOptions& options) {
  if (Compares(options)) return RunComparison(options);
  RETURN_IF_ERROR(CheckPaths(options));
  ScheduleRequest request = options.request;
  request.schedule = options.schedules.front();
  if (!options.micro_batches.empty()) request.micro_batches = options.micro_batches.front();
  ASSIGN_OR_RETURN(const SimulatedSchedule found, SimulateSchedule(request));
  RETURN_IF_ERROR(WriteFiles(options, found));
  if (options.json) {
    PrintJsonLine(ToJson(found));
    return kExitOk;
  }
  absl::PrintF("%s", ToText(found, TerminalTimeline()));
  return kExitOk;
}

auto Count() { return CountIn(1, kMaxSimulated); }

auto Milliseconds() {
  return [](const std::string& text) {
    return ParseNumber(text, {.min = 0.0, .max = 1e9, .above_min = false});
  };
}

void AddScheduleFlags(CLI::App& app, SimulateCommandOptions& options) {
  const std::string group = "Schedule";
  ScheduleRequest& request = options.request;
  AddFlag(app, "--schedule", "NAME|FILE,...", options.schedules,
          absl::StrCat("Schedules listed below, or files; several are compared [", request.schedule,
                       "]"),
          ParseSchedules)
      ->group(group);
  AddFlag(app, "--objective", "step|span", request.objective,
          "What auto minimizes: step, or span (if steps overlap) [step]", ParseOrderObjective)
      ->group(group);
  AddFlag(app, "--devices,--stages", "N", request.stages,
          absl::StrCat("Devices of the pipeline [", ScheduleRequest::kDefaultStages, "]"), Count())
      ->group(group);
  AddFlag(app, "--chunks", "N", request.chunks,
          "Virtual stages (model chunks) per device [the schedule's default]", Count())
      ->group(group);
  AddFlag(app, "--micro-batches", "N,N,...", options.micro_batches,
          absl::StrCat("Micro-batches per step; several are compared [",
                       ScheduleRequest::kDefaultMicroBatches, "]"),
          [](const std::string& text) { return ParseList(text, IntIn(1, kMaxSimulated)); })
      ->group(group);
  AddFlag(app, "--stash-limit", "X", request.stash_limit,
          "Maximum activation stash of a device, in micro-batches [unlimited]",
          [](const std::string& text) {
            return ParseNumber(text, {.min = 0.0, .max = 1e9, .above_min = true});
          })
      ->group(group);
  AddFlag(app, "--weight-stash", "X", request.weight_stash,
          absl::StrCat("Share of a stash that stays from B until W [", request.weight_stash, "]"),
          [](const std::string& text) { return ParseNumber(text, {.min = 0.0, .max = 1.0}); })
      ->group(group);
  AddFlag(app, "--offload", "SHARE", request.offload,
          "Share of stashes moved to host memory meanwhile: none, full, 0 to 1 [none]",
          ParseOffload)
      ->group(group);
}

void AddTimeFlags(CLI::App& app, SimulateCommandOptions& options) {
  const std::string group = "Times";
  ScheduleRequest& request = options.request;
  CLI::Option* const file =
      app.add_option("--times", request.times_file, "Times of each stage, see docs/schedules.md")
          ->option_text("FILE.json")
          ->group(group);
  const std::string per_device = " of a device for one micro-batch, in ms [1]";
  const auto add = [&](const char* name, double& value, const std::string& description) {
    AddFlag(app, name, "MS", value, description, Milliseconds())->excludes(file)->group(group);
  };
  add("--forward", request.forward_ms, "Forward pass (F)" + per_device);
  add("--backward", request.backward_ms, "Gradient of the input (B)" + per_device);
  add("--weight", request.weight_ms, "Gradient of the weights (W)" + per_device);
  add("--latency", request.latency_ms, "Time of a message between two devices, in ms [0]");
  add("--host-copy", request.host_copy_ms,
      "Time to move a device's stash of one micro-batch to host memory or back, in ms [0]");
  AddFlag(app, "--overlap", "X", request.overlap,
          "Overlapped F and BW take this share of their sum, at least the longer [1]",
          [](const std::string& text) { return ParseNumber(text, {.min = 0.01, .max = 1.0}); })
      ->excludes(file)
      ->group(group);
  AddFlag(app, "--sends", "NAME", request.sends,
          "buffered, rendezvous (as the runtime), grouped (NCCL), blocking [buffered]", ParseSends)
      ->group(group);
}

void AddOutputFlags(CLI::App& app, SimulateCommandOptions& options) {
  const std::string group = "Output";
  app.add_flag("--json", options.json, "Print one JSON object")->group(group);
  const auto add = [&](const char* name, std::string& value, const char* description) {
    AddOutput(app, name, "FILE", value, description)->group(group);
  };
  add("--html", options.html, "Write the timeline as a page to explore");
  add("--svg", options.svg, "Write the timeline as a picture");
  add("--trace", options.trace, "Write a trace for Perfetto and for trace diff");
  AddOutput(app, "--save", "FILE", options.save, "Write the schedule, as .csv (PyTorch's) or .json",
            [](const std::string& path) -> absl::StatusOr<std::string> {
              if (schedule::IsScheduleFile(path)) return ParseOutput(path);
              return absl::InvalidArgumentError("expected a file that ends in .csv or .json");
            })
      ->group(group);
  app.add_flag("--lowered", options.lower,
               "Save it with sends, receives, sums of gradients and steps")
      ->needs("--save")
      ->group(group);
}

}  // namespace

Command AddSimulateCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("simulate", "Simulate a pipeline schedule and draw it");
  flags->footer(absl::StrCat(DescribeSchedules(), "\n", kExitStatusHelp));
  const auto options = std::make_shared<SimulateCommandOptions>();
  AddScheduleFlags(*flags, *options);
  AddTimeFlags(*flags, *options);
  AddOutputFlags(*flags, *options);
  return {flags, [options] { return RunSimulation(*options); }};
}

}  // namespace stagecoach::tools
