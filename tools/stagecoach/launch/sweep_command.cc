#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/utf8.h"
#include "engine/checkpoint/metrics.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/launch/local_processes.h"
#include "tools/stagecoach/launch/sweep_grid.h"
#include "tools/stagecoach/launch/sweep_report.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/scratch_folder.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

constexpr size_t kMostRuns = 10'000;
constexpr int64_t kMostOutputBytes = int64_t{1} << 30;

struct SweepOptions {
  std::vector<std::string> swept;
  std::string by = "test_loss";
  std::string folder;  // of the runs' checkpoints; "": they are not saved
  bool json = false;
  std::vector<std::string> command;  // after "--"
};

// Whether a word of a command line sets the flag.
bool Sets(const std::string& word, const std::string& name) {
  return word == "--" + name || word.starts_with(absl::StrCat("--", name, "="));
}

absl::Status CheckCommand(const SweepOptions& options, const std::vector<SweptFlag>& flags) {
  if (options.command.empty() || options.command.front() != "train") {
    return base::UsageError("what to run is missing: sweep seed=1..3 -- train ...");
  }
  for (const std::string& word : options.command) {
    if (Sets(word, "checkpoint")) {
      return base::UsageError(
          "all runs would save themselves in one folder; sweep --checkpoint DIR gives each its "
          "own");
    }
    for (const SweptFlag& flag : flags) {
      if (Sets(word, flag.name)) {
        return base::UsageError(absl::StrCat("--", flag.name, " is both swept and given to train"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SweptFlag>> FlagsOf(const SweepOptions& options) {
  std::vector<SweptFlag> flags;
  size_t runs = 1;
  for (const std::string& text : options.swept) {
    ASSIGN_OR_RETURN(SweptFlag flag, ParseSweptFlag(text));
    const bool is_repeated = std::any_of(flags.begin(), flags.end(), [&](const SweptFlag& other) {
      return other.name == flag.name;
    });
    if (is_repeated) {
      return absl::InvalidArgumentError(absl::StrCat(flag.name, " is swept twice"));
    }
    runs *= flag.values.size();
    flags.push_back(std::move(flag));
  }
  if (runs > kMostRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat("these are more than ", kMostRuns, " combinations"));
  }
  return flags;
}

absl::StatusOr<std::vector<std::string>> TrainingOf(const SweepOptions& options,
                                                    const std::vector<SweptFlag>& flags,
                                                    const SweptValues& values) {
  ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  std::vector<std::string> command = {self};
  command.insert(command.end(), options.command.begin(), options.command.end());
  for (size_t i = 0; i < flags.size(); ++i) {
    command.push_back(absl::StrCat("--", flags[i].name, "=", values[i]));
  }
  command.push_back("--json");
  if (!options.folder.empty()) {
    std::string name = Describe(flags, values);
    std::replace(name.begin(), name.end(), '/', '_');
    std::replace(name.begin(), name.end(), ' ', ',');
    command.push_back(absl::StrCat("--checkpoint=", options.folder, "/", name));
  }
  return command;
}

// Its last line, without "stagecoach train: ".
std::string FailureIn(const std::string& errors) {
  const std::vector<std::string> lines = absl::StrSplit(errors, '\n', absl::SkipEmpty());
  if (lines.empty()) return "it says nothing";
  const std::string& last = lines.back();
  const std::string begin = "stagecoach train: ";
  return base::EscapeControls(last.starts_with(begin) ? last.substr(begin.size()) : last);
}

// Cancelled: a signal stopped it.
absl::StatusOr<SweptRun> Train(const SweepOptions& options, const std::vector<SweptFlag>& flags,
                               const SweptValues& values, const std::string& logs) {
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(std::vector<std::string> command, TrainingOf(options, flags, values));
  ASSIGN_OR_RETURN(
      const EndOfProcesses end,
      RunLocalProcesses(
          {.command = std::move(command),
           .variables = [](int) { return std::vector<std::pair<std::string, std::string>>(); },
           .log_dir = logs}));
  if (end.was_stopped) return absl::CancelledError("stopped by a signal");
  SweptRun run = {.values = values,
                  .status = end.status,
                  .seconds = absl::ToDoubleSeconds(absl::Now() - begin)};
  ASSIGN_OR_RETURN(const std::string output,
                   base::ReadFile(logs + "/rank-0.out", kMostOutputBytes));
  ReadMetrics(output, run);
  if (run.status == kExitOk) return run;
  ASSIGN_OR_RETURN(const std::string errors,
                   base::ReadFile(logs + "/rank-0.err", kMostOutputBytes));
  run.failure = FailureIn(errors);
  return run;
}

// Whether the other runs would end in the same way.
bool IsWrongUsage(int status) { return status == kExitUsage || status == kExitBadConfiguration; }

absl::StatusOr<int> TrainAll(const SweepOptions& options, const std::vector<SweptFlag>& flags,
                             const std::string& logs) {
  const std::vector<SweptValues> all = Combinations(flags);
  std::vector<SweptRun> runs;
  int status = kExitOk;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!options.json && TerminalColumns() > 0) {
      absl::FPrintF(stderr, "run %d of %d: %s\n", i + 1, all.size(), Describe(flags, all[i]));
    }
    ASSIGN_OR_RETURN(SweptRun run, Train(options, flags, all[i], logs));
    if (runs.empty() && IsWrongUsage(run.status)) {
      return base::UsageError(absl::StrCat("train: ", run.failure));
    }
    if (status == kExitOk) status = run.status;
    if (options.json) PrintJsonLine(RunToJson(flags, run));
    runs.push_back(std::move(run));
  }
  if (options.json) {
    PrintJsonLine(SweepToJson(flags, runs, options.by));
  } else {
    absl::PrintF("%s", SweepText(flags, runs, options.by));
  }
  if (status == kExitOk) return status;
  const auto is_failed = [](const SweptRun& run) { return run.status != kExitOk; };
  const SweptRun& first = *std::find_if(runs.begin(), runs.end(), is_failed);
  PrintNotice(absl::StrCat(std::count_if(runs.begin(), runs.end(), is_failed), " of ", runs.size(),
                           " runs failed; ", Describe(flags, first.values), ": ", first.failure));
  return status;
}

absl::StatusOr<int> Sweep(const SweepOptions& options) {
  const absl::StatusOr<std::vector<SweptFlag>> flags = FlagsOf(options);
  if (!flags.ok()) return base::UsageError(flags.status().message());
  RETURN_IF_ERROR(CheckCommand(options, *flags));
  const StopOnHangUp hang_up;
  ASSIGN_OR_RETURN(const std::unique_ptr<ScratchFolder> folder, ScratchFolder::Make("sweep"));
  const absl::StatusOr<int> status = TrainAll(options, *flags, folder->path());
  if (!absl::IsCancelled(status.status())) return status;
  if (!hang_up.has_hung_up()) PrintNotice("stopped by a signal");
  return StatusOfStop();
}

}  // namespace

Command AddSweepCommand(CLI::App& app) {
  CLI::App* flags =
      app.add_subcommand("sweep", "Train with each combination of some flags' values");
  flags->footer(
      "Trains once for each combination of the values, one run after the other, and compares the\n"
      "last evaluations. Runs that differ in their seed alone are summed up by mean and standard\n"
      "deviation.\n\n"
      "  stagecoach sweep seed=1..3 learning-rate=1e-3,3e-3 -- train --data a.csv --epochs 5\n\n"
      "A run that fails does not end the others; the exit status is then that of the first one.");
  const auto options = std::make_shared<SweepOptions>();
  flags
      ->add_option("values", options->swept,
                   "A flag of train and its values, such as seed=1..3 or width=64,128")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddFlag(*flags, "--by", "METRIC", options->by, "Metric of the best values [test_loss]",
          Choice(engine::MetricNames()));
  AddFlag(*flags, "--checkpoint", "DIR", options->folder,
          "Save each run in a folder of its own in DIR", &ParseFolder);
  flags->add_flag("--json", options->json, "Print JSON, one object per line");
  return {flags, [options] { return Sweep(*options); }, &options->command};
}

}  // namespace stagecoach::tools
