#ifndef STAGECOACH_TOOLS_CLI_BENCH_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_BENCH_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// `bench`: measures the throughput of training, of all combinations of what is listed; and
// `bench compare`.
Command AddBenchCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_BENCH_COMMAND_H_
