#ifndef STAGECOACH_TOOLS_CLI_SCHEDULE_OPTION_H_
#define STAGECOACH_TOOLS_CLI_SCHEDULE_OPTION_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "schedule/schedule.h"

namespace stagecoach::tools {

// The value of --schedule: a generator's name, "auto", or the path of a schedule file, which is
// known by its ending (schedule::IsScheduleFile).

inline constexpr char kAutomatic[] = "auto";

// `value` if it is one of the three; the error lists the names and gives the nearest. Does not look
// for the file.
absl::StatusOr<std::string> ParseScheduleOption(const std::string& value);

// What flags ask for besides the schedule.
struct AskedShape {
  std::optional<int> stages;  // devices
  std::optional<int> micro_batches;
  int chunks = 0;  // 0: not asked for
};

// The schedule in a file, proved. A file of another shape than flags ask for is refused. Errors are
// marked with their origin (exit_status.h).
absl::StatusOr<schedule::Schedule> ReadScheduleOption(const std::string& path,
                                                      const AskedShape& asked);

// All schedules and what they are, one a line, for the help.
std::string DescribeSchedules();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SCHEDULE_OPTION_H_
