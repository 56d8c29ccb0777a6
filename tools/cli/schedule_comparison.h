#ifndef STAGECOACH_TOOLS_CLI_SCHEDULE_COMPARISON_H_
#define STAGECOACH_TOOLS_CLI_SCHEDULE_COMPARISON_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/automatic.h"
#include "tools/cli/simulated_schedule.h"

namespace stagecoach::tools {

// `simulate` of several schedules, each with several numbers of micro-batches.
struct ScheduleComparison {
  struct Row {
    std::string schedule;  // as it was asked for
    // Unset: not asked for, and the file that has it could not be used.
    std::optional<int> micro_batches;
    // The error is the reason why this row cannot be performed.
    absl::StatusOr<SimulatedSchedule> simulated;
  };

  std::vector<Row> rows;  // by schedule, then by micro-batches, as they were asked for
  // By which times rows are compared.
  schedule::OrderObjective objective = schedule::OrderObjective::kStep;
  // The row with the most micro-batches per second, among equals that whose fullest device needs
  // the least memory. Unset: no row can be performed.
  std::optional<size_t> best;
};

// `request` says all but schedule and micro-batches, of which none is the default or a file's own
// number. Errors, marked with their origin: those that are not a row's own, such as a file that
// cannot be read.
absl::StatusOr<ScheduleComparison> CompareSchedules(const ScheduleRequest& request,
                                                    const std::vector<std::string>& schedules,
                                                    const std::vector<int>& micro_batches);

// A table of at most 80 columns.
std::string ToText(const ScheduleComparison& comparison);

// {"rows": [...]}, each of them {"schedule", "microbatches", "error"} or what ToJson of the
// simulation has (simulation_report.h) and "peak_stash" and, if sizes are known, "peak_bytes" of
// the fullest device, "microbatches_per_second", and "best".
nlohmann::ordered_json ToJson(const ScheduleComparison& comparison);

// A page with the table and, below it, the timelines on one time axis.
std::string ToHtml(const ScheduleComparison& comparison);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SCHEDULE_COMPARISON_H_
