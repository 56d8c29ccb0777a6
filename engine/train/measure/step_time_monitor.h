#ifndef STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TIME_MONITOR_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TIME_MONITOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/diagnosis/stragglers.h"
#include "engine/runtime/rank_group.h"

namespace stagecoach::engine {

// Reports slow ranks of a run: all of them in one process; among processes, which show one another
// their step times about once a second, rank 0 reports.
class StepTimeMonitor {
 public:
  // The group outlives the monitor.
  StepTimeMonitor(RankGroup& group, std::function<void(const std::string&)> tell);

  // Called after the step of that number, which has taken `step_ns`. `compute_ns`: the computing
  // time of each device of this process in that step.
  void After(int64_t step, int64_t step_ns, absl::FunctionRef<int64_t(int device)> compute_ns);

 private:
  RankGroup& group_;
  const std::function<void(const std::string&)> tell_;
  StragglerDetector slow_;
  std::vector<StepTimeMeter> meters_;  // index: as group_.local_devices()
  std::vector<std::optional<StepTime>> step_times_;
  std::chrono::steady_clock::time_point next_exchange_ = {};
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TIME_MONITOR_H_
