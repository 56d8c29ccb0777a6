#ifndef STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TRACES_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TRACES_H_

#include <cstdint>
#include <vector>

#include "schedule/ir/schedule.h"
#include "schedule/traces/trace.h"

namespace stagecoach::engine {

// Number of steps whose traces are kept: the last ones.
inline constexpr int kTracedSteps = 8;

// The traces of the last steps under one training schedule. Steps are numbered from 1 on and come
// in order. Begin and End allocate nothing.
class StepTraces {
 public:
  explicit StepTraces(const schedule::Schedule& lowered);

  // Returns the trace that the ranks fill during the step: its lists have the lengths of the
  // schedule's.
  schedule::Trace& Begin(int64_t step) { return Of(step); }
  // Called when the step is done, and the trace is filled except for its duration.
  void End(int64_t step);

  // Return copies: of the trace of a completed step, one of the last kTracedSteps; of all of these
  // up to `step`.
  schedule::Trace Last(int64_t step) const { return Of(step); }
  std::vector<schedule::Trace> Recent(int64_t step) const;

 private:
  const schedule::Trace& Of(int64_t step) const {
    return ring_[static_cast<size_t>(step % kTracedSteps)];
  }
  schedule::Trace& Of(int64_t step) { return ring_[static_cast<size_t>(step % kTracedSteps)]; }

  std::vector<schedule::Trace> ring_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURE_STEP_TRACES_H_
