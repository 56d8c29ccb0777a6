#ifndef STAGECOACH_TOOLS_STAGECOACH_VALUES_SCHEDULE_OPTION_H_
#define STAGECOACH_TOOLS_STAGECOACH_VALUES_SCHEDULE_OPTION_H_

#include <string>

#include "absl/status/statusor.h"

namespace stagecoach::tools {

// The value of --schedule: a generator's name, "auto", or the path of a schedule file, which is
// recognized by its extension (schedule::IsScheduleFile).

inline constexpr char kAutomatic[] = "auto";

// Returns `value` if it is one of the three; the error lists the names and suggests the nearest.
// Does not look for the file.
absl::StatusOr<std::string> ParseScheduleOption(const std::string& value);

// All schedules and what they are, one a line, for the help.
std::string DescribeSchedules();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_VALUES_SCHEDULE_OPTION_H_
