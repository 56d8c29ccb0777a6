#ifndef STAGECOACH_TOOLS_CLI_RUN_EVENTS_H_
#define STAGECOACH_TOOLS_CLI_RUN_EVENTS_H_

#include <nlohmann/json_fwd.hpp>

#include "engine/train/fit.h"
#include "tools/cli/report.h"

// What happens in a run, as JSON: the lines of `train --json` and of its file of metrics.
namespace stagecoach::tools {

// A step, of its own batch alone: "loss" before the update, "learning_rate" and the speed over the
// epoch so far; "skipped", the reason, in place of the loss of a step that changed nothing.
nlohmann::ordered_json StepEvent(const engine::FitProgress& progress, const Measures& measures);

// `name`: "epoch", or "evaluation" within one. Numbers that are not finite become null.
nlohmann::ordered_json EvaluationEvent(const char* name, const engine::EpochResult& result,
                                       const Measures& measures);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_RUN_EVENTS_H_
