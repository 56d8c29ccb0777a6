#ifndef STAGECOACH_ENGINE_TRAIN_PACE_WATCH_H_
#define STAGECOACH_ENGINE_TRAIN_PACE_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/diagnosis/slow_ranks.h"
#include "engine/run/rank_group.h"

namespace stagecoach::engine {

// Tells of slow ranks of a run: of all in one process; among processes, which show one another
// their paces about once a second, rank 0 tells.
class PaceWatch {
 public:
  // The group outlives the watch.
  PaceWatch(RankGroup& group, std::function<void(const std::string&)> tell);

  // After the step of that number, which has taken so long. `compute_ns`: of each device of this
  // process, computing in that step.
  void After(int64_t step, int64_t step_ns, absl::FunctionRef<int64_t(int device)> compute_ns);

 private:
  RankGroup& group_;
  const std::function<void(const std::string&)> tell_;
  SlowRanks slow_;
  std::vector<PaceMeter> meters_;  // as group_.local_devices()
  std::vector<std::optional<Pace>> paces_;
  std::chrono::steady_clock::time_point next_exchange_ = {};
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PACE_WATCH_H_
