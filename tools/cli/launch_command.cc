#include "tools/cli/launch_command.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/launch/free_port.h"
#include "tools/cli/add_flag.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/flags.h"
#include "tools/cli/local_processes.h"

namespace stagecoach::tools {
namespace {

constexpr int kMostProcesses = 4096;
constexpr const char* kLocalhost = "127.0.0.1";

struct Options {
  int processes = 0;
  std::string log_dir;
  double patience_seconds = 10;
  std::vector<std::string> command;  // after "--"
};

// What launchers set: this program's own variables, and those of torchrun, which many others read.
std::vector<std::pair<std::string, std::string>> VariablesOf(int rank, int ranks, int port) {
  const std::string number = absl::StrCat(rank);
  const std::string count = absl::StrCat(ranks);
  return {{"STAGECOACH_RANK", number},
          {"STAGECOACH_RANKS", count},
          {"STAGECOACH_LOCAL_RANK", number},
          {"STAGECOACH_RENDEZVOUS", absl::StrCat("tcp://", kLocalhost, ":", port)},
          {"RANK", number},
          {"WORLD_SIZE", count},
          {"LOCAL_RANK", number},
          {"LOCAL_WORLD_SIZE", count},
          {"MASTER_ADDR", kLocalhost},
          {"MASTER_PORT", absl::StrCat(port + 1)}};
}

absl::StatusOr<int> Launch(const Options& options, const CLI::App& flags) {
  if (options.command.empty()) {
    return From(Origin::kUsage, absl::InvalidArgumentError(
                                    "what to start is missing: launch --processes P -- COMMAND"));
  }
  if (!options.log_dir.empty()) {
    RETURN_IF_ERROR(
        From(Origin::kUsage, base::Annotate(base::MakeFolders(options.log_dir), "--log-dir")));
  }
  ASSIGN_OR_RETURN(const engine::FreePort port, engine::FreePort::Take());
  LocalProcesses processes = {
      .processes = options.processes,
      .command = options.command,
      .variables = [&](int rank) { return VariablesOf(rank, options.processes, port.number()); },
      .log_dir = options.log_dir,
      .patience = absl::Seconds(options.patience_seconds)};
  const std::vector<const CLI::App*> own = flags.get_parent()->get_subcommands({});
  const bool is_own = std::any_of(own.begin(), own.end(), [&](const CLI::App* command) {
    return command->get_name() == options.command.front();
  });
  if (is_own) {
    std::error_code error;
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) {
      return absl::InternalError(absl::StrCat("cannot find this program: ", error.message()));
    }
    processes.command.insert(processes.command.begin(), self.string());
  }
  return RunLocalProcesses(processes);
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
      "fails, the others are ended, and the exit status is that of the first that failed.");
  const auto options = std::make_shared<Options>();
  AddFlag(*flags, "-p,--processes", "P", options->processes, "Number of processes",
          [](const std::string& text) { return ParseCount(text, 1, kMostProcesses); })
      ->required();
  flags
      ->add_option("--log-dir", options->log_dir,
                   "Write output to DIR/rank-N.out and DIR/rank-N.err instead")
      ->option_text("DIR");
  AddFlag(*flags, "--patience", "SECONDS", options->patience_seconds,
          "How long the others have to end once one has failed [10]",
          [](const std::string& text) { return ParseNumber(text, {.min = 0, .max = 86400}); });
  return {.flags = flags,
          .run = [options, flags] { return Launch(*options, *flags); },
          .rest = &options->command};
}

}  // namespace stagecoach::tools
