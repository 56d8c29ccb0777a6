#ifndef STAGECOACH_TOOLS_CLI_SIMULATED_SCHEDULE_H_
#define STAGECOACH_TOOLS_CLI_SIMULATED_SCHEDULE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/automatic.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"
#include "schedule/stash.h"

namespace stagecoach::tools {

// Which schedule `simulate` is asked for, and at what costs.
struct ScheduleRequest {
  static constexpr int kDefaultStages = 4;
  static constexpr int kDefaultMicroBatches = 8;

  std::string schedule = "1f1b";  // name, "auto" or file (schedule_option.h)
  // What "auto" minimizes; unset: the step. Refused for any other schedule.
  std::optional<schedule::OrderObjective> objective;
  std::optional<int> stages;  // ranks
  std::optional<int> micro_batches;
  int chunks = 0;  // per rank; 0: the schedule's own number
  // In ms, of a device and micro-batch.
  double forward_ms = 1.0;
  double backward_ms = 1.0;
  double weight_ms = 1.0;
  double latency_ms = 0.0;
  double overlap = 1.0;
  std::string times_file;  // in place of all those; "": none
  // In what a device stashes of a micro-batch; unset: no limit. "auto" keeps to it, and anything
  // else that exceeds it is refused.
  std::optional<double> stash_limit;
  double weight_stash = 0.5;  // share that is kept from B until W
  schedule::Sends sends = schedule::Sends::kBuffered;
};

struct SimulatedSchedule {
  schedule::Schedule as_given;      // compute or, from a file, perhaps lowered
  schedule::Schedule lowered;       // proved
  schedule::Simulation simulation;  // with its trace
  // In what a device stashes of a micro-batch: what stages keep (index: stage), and the most that
  // each rank does.
  std::vector<schedule::StageStash> unit_stash;
  std::vector<double> peak_stash;
};

// Errors are marked with their origin (exit_status.h).
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const ScheduleRequest& request);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SIMULATED_SCHEDULE_H_
