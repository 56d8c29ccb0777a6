#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/launch/local_processes.h"
#include "tools/stagecoach/launch/supervision.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

constexpr int kMostProcesses = 4096;
constexpr int kMostRestarts = 1'000'000;

struct Options {
  int processes = 0;
  std::string log_dir;
  std::optional<double> patience_seconds;
  int max_restarts = 0;
  double silence_seconds = 10;
  std::vector<std::string> command;  // after "--"
};

bool IsOneOf(const std::vector<const CLI::App*>& commands, const std::string& name) {
  return std::any_of(commands.begin(), commands.end(),
                     [&](const CLI::App* command) { return command->get_name() == name; });
}

// Returns what to execute: a command of this program needs the program in front.
absl::StatusOr<std::vector<std::string>> CommandOf(const Options& options, bool is_own) {
  std::vector<std::string> command = options.command;
  if (!is_own) return command;
  ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  command.insert(command.begin(), self);
  return command;
}

absl::StatusOr<int> Launch(const Options& options, const CLI::App& flags) {
  if (options.command.empty()) {
    return base::UsageError("what to start is missing: launch --processes P -- COMMAND");
  }
  if (!options.log_dir.empty()) {
    RETURN_IF_ERROR(base::Annotate(base::MakeFolders(options.log_dir), "--log-dir"));
  }
  const bool is_own = IsOneOf(flags.get_parent()->get_subcommands({}), options.command.front());
  const bool trains = is_own && options.command.front() == "train";
  const bool restarts = options.max_restarts > 0;
  const bool saves = std::any_of(
      options.command.begin(), options.command.end(),
      [](const std::string& word) { return word.substr(0, word.find('=')) == "--checkpoint"; });
  if (restarts && trains && !saves) {
    return base::UsageError(
        "--max-restarts: the run would start at its beginning again: let it save "
        "itself, by train --checkpoint DIR");
  }
  Supervision supervision = {
      .processes = {.processes = options.processes,
                    .log_dir = options.log_dir,
                    .patience = absl::Seconds(options.patience_seconds.value_or(restarts ? 2 : 10)),
                    .silence = restarts ? absl::Seconds(options.silence_seconds)
                                        : absl::InfiniteDuration()},
      .max_restarts = options.max_restarts};
  ASSIGN_OR_RETURN(supervision.processes.command, CommandOf(options, is_own));
  if (trains) supervision.restart_arguments = {"--resume"};
  supervision.on_restart = [&](const std::string& cause, const std::string& which, int restart) {
    std::fprintf(stderr, "stagecoach launch: %s; starts %s again (%d of %d)\n",
                 Printable(cause).c_str(), which.c_str(), restart, options.max_restarts);
  };
  supervision.on_diagnosis = [](const std::string& text) {
    std::fprintf(stderr, "stagecoach launch: %s\n", Printable(text).c_str());
  };
  return Supervise(supervision);
}

}  // namespace

Command AddLaunchCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("launch", "Start a command in several processes");
  flags->footer(
      "Starts the command once for each rank, on this machine: a command of stagecoach, such as\n"
      "train, or a program. Each is told its rank by the variables that launchers set\n"
      "(STAGECOACH_RANK, RANK, WORLD_SIZE, MASTER_ADDR and so on), and where the ranks meet.\n\n"
      "  stagecoach launch --processes 4 -- train --device cuda --stages 4\n\n"
      "Lines of their output have the rank in front, but for those of rank 0 on stdout. If one\n"
      "fails, the others are ended, and the exit status is that of the first that failed; of a\n"
      "program that cannot be run, 127.\n\n"
      "With --max-restarts, it is started again: alone, if the others can continue, as replicas "
      "of\n"
      "train on CPU devices can; else with all others, or fewer of them if a device is gone\n"
      "(status 69). Not after a status that another try would only repeat (2, 65, 74, 78).");
  const auto options = std::make_shared<Options>();
  AddFlag(*flags, "-p,--processes", "P", options->processes, "Number of processes",
          [](const std::string& text) { return ParseCount(text, 1, kMostProcesses); })
      ->required();
  flags
      ->add_option("--log-dir", options->log_dir,
                   "Write output to DIR/rank-N.out and DIR/rank-N.err instead")
      ->option_text("DIR");
  const auto seconds = [](const std::string& text) {
    return ParseNumber(text, {.min = 0, .max = 86400});
  };
  AddFlag(*flags, "--patience", "SECONDS", options->patience_seconds,
          "Time for the others to end once one has failed [10; 2 before a restart]", seconds);
  AddFlag(*flags, "--max-restarts", "N", options->max_restarts,
          "Number of restarts after a failure; train resumes from its checkpoint [0]",
          [](const std::string& text) { return ParseCount(text, 0, kMostRestarts); });
  AddFlag(*flags, "--silence", "SECONDS", options->silence_seconds,
          "Kill a process that is stopped, or hangs in a step, for longer than this [10]", seconds);
  return {.flags = flags,
          .run = [options, flags] { return Launch(*options, *flags); },
          .rest = &options->command};
}

}  // namespace stagecoach::tools
