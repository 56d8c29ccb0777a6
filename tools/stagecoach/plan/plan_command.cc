#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "partition/io/exports.h"
#include "partition/io/plan_file.h"
#include "partition/report/evaluation_report.h"
#include "partition/search/planner.h"
#include "schedule/render/timeline.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/plan/comparison.h"
#include "tools/stagecoach/plan/plan_request.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

using partition::ComparedPlan;
using partition::PlanEvaluation;

constexpr int kMaxTimelineRows = 64;
constexpr double kDefaultTimeLimit = 10;  // in s

// A plan for another program, and its destination.
struct Export {
  std::string format;
  std::string path;
};

struct PlanCommandOptions {
  PlanFlags request;
  double time_limit_s = kDefaultTimeLimit;
  std::vector<std::string> starts;   // plan files
  std::vector<std::string> compare;  // heuristics and plan files
  bool json = false;
  std::string html, save;  // files; "": none
  std::vector<Export> exports;
};

absl::StatusOr<Export> ParseExport(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  RETURN_IF_ERROR(ParseChoice(parts.first,
                              {"torch", "torch-schedule", "torch-lowered", "megatron", "deepspeed"})
                      .status());
  if (parts.second.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", parts.first, ":FILE"));
  }
  RETURN_IF_ERROR(ParseOutput(parts.second).status());
  return Export{parts.first, parts.second};
}

absl::StatusOr<std::vector<Export>> ParseExports(const std::string& text) {
  return ParseList(text, ParseExport);
}

absl::Status CannotShareLayers() {
  return base::UsageError("other programs do not share layers as --tensor does");
}

absl::StatusOr<std::string> ExportText(const PlanEvaluation& evaluation,
                                       const std::string& format) {
  if (evaluation.tensor_parts > 1) return CannotShareLayers();
  if (format == "torch") return ToTorchPlanJson(evaluation.plan(), evaluation.layer_names);
  if (format == "torch-schedule") return ToTorchScheduleCsv(evaluation.plan());
  if (format == "torch-lowered") return ToTorchLoweredCsv(evaluation.plan());
  absl::StatusOr<std::string> line =
      format == "megatron" ? ToMegatronLayout(evaluation.plan(), evaluation.layer_names)
                           : ToDeepSpeedParts(evaluation.plan());
  if (line.ok()) absl::StrAppend(&*line, "\n");
  return line;
}

// Checks paths before a search that may take a while.
absl::Status CheckPaths(const PlanCommandOptions& options) {
  std::vector<OutputFile> outputs;
  if (!options.html.empty()) outputs.push_back({"--html", options.html});
  if (!options.save.empty()) outputs.push_back({"--save", options.save});
  for (const Export& own : options.exports) {
    outputs.push_back({absl::StrCat("--export ", own.format), own.path});
  }
  for (const OutputFile& output : outputs) RETURN_IF_ERROR(base::CheckWritable(output.path));
  return CheckDistinct(outputs);
}

absl::Status WriteFiles(const PlanCommandOptions& options, const PlanEvaluation& evaluation,
                        const std::vector<ComparedPlan>& compared) {
  // All texts are made before any file is written, so that one that cannot be made leaves none.
  std::vector<std::string> texts;
  for (const Export& own : options.exports) {
    absl::StatusOr<std::string> text = ExportText(evaluation, own.format);
    if (!text.ok()) {
      return base::Annotate(text.status(), absl::StrCat("--export ", own.format));
    }
    texts.push_back(*std::move(text));
  }
  if (!options.save.empty()) {
    partition::PlanFile file = {evaluation.model, evaluation.plan(), evaluation.parameter_bytes};
    file.plan.tensor_parts = evaluation.tensor_parts;
    if (!evaluation.left_out.empty() && !options.request.cluster.empty()) {
      for (const partition::ClusterDevice& device : evaluation.cluster.devices) {
        const bool is_group = !device.members.empty();
        file.devices.insert(file.devices.end(), device.members.begin(), device.members.end());
        if (!is_group) file.devices.push_back(device.name);
      }
    }
    RETURN_IF_ERROR(partition::WritePlanFile(options.save, file));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    RETURN_IF_ERROR(base::WriteFileAtomically(options.exports[i].path, texts[i]));
  }
  if (options.html.empty()) return absl::OkStatus();
  return base::WriteFileAtomically(options.html, partition::ToHtml(evaluation, compared));
}

void PrintText(const PlanEvaluation& evaluation, const std::vector<ComparedPlan>& compared) {
  absl::PrintF("%s", base::EscapeControls(partition::ToText(evaluation)));
  if (!compared.empty()) absl::PrintF("\n%s", ComparisonTable(evaluation, compared));
  if (!evaluation.simulation.trace.actions.empty() &&
      evaluation.plan().num_ranks() <= kMaxTimelineRows) {
    absl::PrintF("\none step, simulated with the times of the profile\n%s",
                 schedule::ToTimeline(evaluation.simulation.trace, TerminalTimeline()));
  }
}

// Refuses exports that no plan of the model allows, before a search that may take a while.
absl::Status CheckExports(const PlanCommandOptions& options, const PlanTask& task) {
  const bool shares_layers =
      std::all_of(task.options.begin(), task.options.end(),
                  [](const partition::ModelOption& option) { return option.tensor_parts > 1; });
  if (shares_layers && !options.exports.empty()) {
    return base::Annotate(CannotShareLayers(),
                          absl::StrCat("--export ", options.exports.front().format));
  }
  const bool has_megatron = std::any_of(options.exports.begin(), options.exports.end(),
                                        [](const Export& own) { return own.format == "megatron"; });
  if (!has_megatron) return absl::OkStatus();
  std::vector<std::string> names;
  for (const partition::LayerCost& layer : task.options.front().profile.sizes.front().layers) {
    names.push_back(layer.name);
  }
  const absl::Status status =
      base::Annotate(partition::CheckMegatronLayers(names), "--export megatron");
  const bool is_own =
      options.request.profile == "analytic" || options.request.profile == "measured";
  if (status.ok() || !is_own) return status;
  return base::WithMessage(status,
                           absl::StrCat(status.message(),
                                        "; a transformer of this program has two layers for each "
                                        "block: plan from a profile of Megatron-LM's own, "
                                        "--profile FILE.json"));
}

absl::StatusOr<std::vector<partition::Plan>> ReadStarts(const std::vector<std::string>& paths) {
  std::vector<partition::Plan> starts;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(partition::PlanFile file, partition::ReadPlanFile(path));
    starts.push_back(std::move(file.plan));
  }
  return starts;
}

void SayWhichStartsAreNone(const std::vector<std::string>& paths,
                           const PlanEvaluation& evaluation) {
  for (size_t i = 0; i < evaluation.starts.size(); ++i) {
    const absl::Status& status = evaluation.starts[i];
    if (status.ok()) continue;
    absl::FPrintF(stderr, "stagecoach plan: --start %s is not a plan for this request: %s\n",
                  paths[i], status.message());
  }
}

// Searches until the time is over, or Ctrl-C; meanwhile a terminal shows the best plan so far.
absl::StatusOr<PlanEvaluation> Search(const PlanTask& task, double time_limit_s) {
  StopOnSignals();
  const char* objective =
      task.request.objective == partition::PlanObjective::kStep ? "step" : "bottleneck";
  absl::StatusOr<PlanEvaluation> chosen = FindPlan(
      task.request, task.options,
      {.deadline = absl::Now() + absl::Seconds(time_limit_s),
       .is_cancelled = StopRequested,
       .on_better =
           [&](double objective_ns) {
             RedrawErrorLine(absl::StrCat("best ", objective, " so far: ",
                                          base::FormatDuration(absl::Nanoseconds(objective_ns))));
           },
       .improves = true});
  RedrawErrorLine("");
  if (chosen.ok() && chosen->is_cut_short) {
    const std::string by =
        StopRequested() ? std::string("a signal") : absl::StrCat("--time-limit ", time_limit_s);
    absl::FPrintF(stderr, "stagecoach plan: cut short by %s: this is the best plan so far\n", by);
  }
  return chosen;
}

absl::StatusOr<int> RunPlan(const PlanCommandOptions& options) {
  RETURN_IF_ERROR(CheckPaths(options));
  ASSIGN_OR_RETURN(PlanTask task, MakePlanTask(options.request));
  RETURN_IF_ERROR(CheckExports(options, task));
  ASSIGN_OR_RETURN(task.request.starts, ReadStarts(options.starts));
  const absl::StatusOr<PlanEvaluation> found = Search(task, options.time_limit_s);
  if (absl::IsCancelled(found.status())) {
    absl::FPrintF(stderr, "stagecoach plan: %s\n", found.status().message());
    return StatusOfStop();
  }
  RETURN_IF_ERROR(found.status());
  const PlanEvaluation& evaluation = *found;
  SayWhichStartsAreNone(options.starts, evaluation);
  task.request.profile = task.options[evaluation.option_index].profile;
  task.request.cluster = evaluation.cluster;
  std::vector<ComparedPlan> compared;
  for (const std::string& name : options.compare) {
    ASSIGN_OR_RETURN(compared.emplace_back(), Compare(name, evaluation, task));
  }
  RETURN_IF_ERROR(WriteFiles(options, evaluation, compared));
  if (!options.json) {
    PrintText(evaluation, compared);
    if (evaluation.start.has_value()) {
      absl::PrintF("\nno plan faster than --start %s was found\n",
                   options.starts[*evaluation.start]);
    }
    return kExitOk;
  }
  absl::PrintF("%s\n", partition::ToJson(evaluation, compared));
  return kExitOk;
}

void AddOutputFlags(CLI::App& app, PlanCommandOptions& options) {
  const std::string group = "Output";
  app.add_flag("--json", options.json, "Print one JSON object")->group(group);
  AddOutput(app, "--html", "FILE", options.html, "Write a page with memory, timeline and tables")
      ->group(group);
  AddOutput(app, "--save", "FILE.json", options.save, "Write the plan, for train --plan")
      ->group(group);
  AddFlag(app, "--export", "FORMAT:FILE,...", options.exports,
          "Write the plan for torch[-schedule|-lowered], megatron, deepspeed", ParseExports)
      ->group(group);
  AddFlag(app, "--compare", "NAME|FILE,...", options.compare,
          "Compare with uniform, parameters, flops or plan files", ParseCompared)
      ->group(group);
}

}  // namespace

Command AddPlanCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand(
      "plan", "Find the fastest way to split a model over devices, and predict its cost");
  flags->footer(kExitStatusHelp);
  const auto options = std::make_shared<PlanCommandOptions>();
  AddPlanRequestFlags(*flags, options->request);
  AddFlag(*flags, "--time-limit", "SECONDS", options->time_limit_s,
          absl::StrCat("End the search with the best plan found so far, as Ctrl-C does [",
                       kDefaultTimeLimit, "]"),
          [](const std::string& text) {
            return ParseNumber(text, {.min = 0.0, .max = 1e9, .above_min = true});
          })
      ->group("What the planner may choose");
  AddFlag(*flags, "--start", "FILE.json,...", options->starts,
          "Plans to begin with: the answer is no slower than any of them that fits",
          [](const std::string& text) { return ParseList(text, ParseInput); })
      ->group("What the planner may choose");
  AddOutputFlags(*flags, *options);
  return {flags, [options] { return RunPlan(*options); }};
}

}  // namespace stagecoach::tools
