#ifndef STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATED_SCHEDULE_H_
#define STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATED_SCHEDULE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/stash.h"
#include "schedule/search/automatic.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::tools {

// The schedule that `simulate` is to perform, and its costs.
struct ScheduleRequest {
  static constexpr int kDefaultStages = 4;
  static constexpr int kDefaultMicroBatches = 8;

  std::string schedule = "1f1b";  // name, "auto" or file (schedule_option.h)
  // The objective of "auto"; unset: the step. Refused for any other schedule.
  std::optional<schedule::OrderObjective> objective;
  std::optional<int> stages;  // ranks
  std::optional<int> micro_batches;
  int chunks = 0;  // per rank; 0: the schedule's own number
  // Times in ms, per device and micro-batch.
  double forward_ms = 1.0;
  double backward_ms = 1.0;
  double weight_ms = 1.0;
  double latency_ms = 0.0;
  double overlap = 1.0;
  double host_copy_ms = 0.0;  // to move the stash to the host, or back
  std::string times_file;     // replaces all of these; "": none
  // The limit in units of what a device stashes for a micro-batch; unset: no limit. "auto" respects
  // it, and anything else that exceeds it is refused.
  std::optional<double> stash_limit;
  double weight_stash = 0.5;  // share that is kept from B until W
  double offload = 0.0;       // share of stashes that are moved to the host (LoweringOptions)
  schedule::Sends sends = schedule::Sends::kBuffered;
};

struct SimulatedSchedule {
  schedule::Schedule as_given;      // compute actions only or, from a file, perhaps lowered
  schedule::Schedule lowered;       // proved
  schedule::Simulation simulation;  // with its trace
  // Stashes in units of what a device stashes for a micro-batch: what stages keep (index: stage),
  // and the most that each rank keeps.
  std::vector<schedule::StageStash> unit_stash;
  std::vector<double> peak_stash;
};

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const ScheduleRequest& request);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATED_SCHEDULE_H_
