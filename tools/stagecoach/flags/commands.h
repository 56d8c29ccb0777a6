#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMANDS_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMANDS_H_

#include "tools/stagecoach/flags/cli11_fwd.h"
#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach train": splits a model over devices and trains it.
Command AddTrainCommand(CLI::App& app);

// Adds "stagecoach predict": runs the model of a checkpoint forward over data, over as many devices
// as it takes, and writes the outputs.
Command AddPredictCommand(CLI::App& app);

// Adds "stagecoach generate": continues a text by a model of tokens, token by token.
Command AddGenerateCommand(CLI::App& app);

// Adds "stagecoach prepare": makes token files from a text (engine/data/tokens/prepare.h), which
// train reads.
Command AddPrepareCommand(CLI::App& app);

// Adds "stagecoach plan": shows how a model would be divided, without training it.
Command AddPlanCommand(CLI::App& app);

// Adds "stagecoach profile": measures what each layer of a model costs, for planners.
Command AddProfileCommand(CLI::App& app);

// Adds "stagecoach simulate": generates or reads a schedule, proves it, performs it in virtual time
// and draws it. Needs no device and no model.
Command AddSimulateCommand(CLI::App& app);

// Adds "stagecoach bench", which measures the throughput of training for all combinations of the
// listed values; and "bench compare".
Command AddBenchCommand(CLI::App& app);

// Adds "stagecoach trace diff|show": shows where a measured run differs from the simulated one, and
// draws a trace.
Command AddTraceCommand(CLI::App& app);

// Adds "stagecoach checkpoint inspect|verify|diff|export": shows the contents of a checkpoint,
// checks that it is whole, compares two, and writes its parameters as one file.
Command AddCheckpointCommand(CLI::App& app);

// Adds "stagecoach replay": trains some steps of a saved run twice and compares the bits.
Command AddReplayCommand(CLI::App& app);

// Adds "stagecoach launch": starts a command in several processes on this machine, as launchers do.
Command AddLaunchCommand(CLI::App& app);

// Adds "stagecoach sweep": trains with each combination of some flags' values, and compares.
Command AddSweepCommand(CLI::App& app);

// Adds "stagecoach chaos": trains in processes that are killed and stopped at random, and shows
// that the result has the bits of an undisturbed run.
Command AddChaosCommand(CLI::App& app);

// Adds "stagecoach devices": shows what this machine can train on.
Command AddDevicesCommand(CLI::App& app);

// Adds "stagecoach help": prints the help of a command, a manual page of all, and the scripts with
// which a shell completes commands and flags. Describes what `app` has when it runs.
Command AddHelpCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_COMMANDS_H_
