#ifndef STAGECOACH_TOOLS_STAGECOACH_VALUES_STOP_CONDITION_OPTION_H_
#define STAGECOACH_TOOLS_STAGECOACH_VALUES_STOP_CONDITION_OPTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/train/stop_condition.h"

namespace stagecoach::tools {

// Reads a metric, one of > >= < <=, and a number, without spaces. InvalidArgument says what was
// expected.
absl::StatusOr<engine::StopCondition> ParseStopCondition(const std::string& text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_VALUES_STOP_CONDITION_OPTION_H_
