#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "bench", which measures the throughput of training for all combinations of the listed
// values; and "bench compare".
Command AddBenchCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMMAND_H_
