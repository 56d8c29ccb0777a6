#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/stagecoach/flags/cli11_fwd.h"

namespace stagecoach::tools {

// A subcommand: its flags, and what it does once they have been parsed. `run` returns the exit
// status, or an error for Fail (tools/stagecoach/terminal/exit_status.h) to print.
struct Command {
  CLI::App* flags = nullptr;
  std::function<absl::StatusOr<int>()> run;
  // Given what comes after "--" before it runs; null: nothing may come there.
  std::vector<std::string>* rest = nullptr;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMAND_H_
