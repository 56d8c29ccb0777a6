#ifndef STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SCHEDULE_COMPARISON_H_
#define STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SCHEDULE_COMPARISON_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/search/automatic.h"
#include "tools/stagecoach/simulate/simulated_schedule.h"

namespace stagecoach::tools {

// `simulate` with several schedules, each with several numbers of micro-batches.
struct ScheduleComparison {
  struct Row {
    std::string schedule;  // as requested
    // Unset: not requested, and the file that has it could not be used.
    std::optional<int> micro_batches;
    // The error is the reason why this row cannot be performed.
    absl::StatusOr<SimulatedSchedule> simulated;
  };

  std::vector<Row> rows;  // by schedule, then by micro-batches, in the order requested
  // The times by which rows are compared.
  schedule::OrderObjective objective = schedule::OrderObjective::kStep;
  // The row with the most micro-batches per second; among equals, the one whose fullest device
  // needs the least memory. Unset: no row can be performed.
  std::optional<size_t> best;
};

// `request` specifies everything except schedule and micro-batches; no micro-batches stands for the
// default or a file's own number. Errors: those that are not a row's own, such as a file that
// cannot be read.
absl::StatusOr<ScheduleComparison> CompareSchedules(const ScheduleRequest& request,
                                                    const std::vector<std::string>& schedules,
                                                    const std::vector<int>& micro_batches);

// Returns a table of at most 80 columns.
std::string ToText(const ScheduleComparison& comparison);

// Returns {"rows": [...]}, each of them {"schedule", "micro_batches", "error"} or the keys of the
// simulation's ToJson (simulation_report.h) and "peak_stash" and, if sizes are known, "peak_bytes"
// of the fullest device, "micro_batches_per_second", and "best".
nlohmann::ordered_json ToJson(const ScheduleComparison& comparison);

// Returns a page with the table and, below it, the timelines on one time axis.
std::string ToHtml(const ScheduleComparison& comparison);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SCHEDULE_COMPARISON_H_
