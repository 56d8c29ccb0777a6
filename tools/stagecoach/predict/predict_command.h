#ifndef STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICT_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICT_COMMAND_H_

#include "tools/stagecoach/flags/cli11_fwd.h"
#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "predict": runs the model of a checkpoint forward over data, over as many devices as it
// takes, and writes what it gives.
Command AddPredictCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICT_COMMAND_H_
