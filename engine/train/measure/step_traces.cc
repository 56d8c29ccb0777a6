#include "engine/train/measure/step_traces.h"

#include <algorithm>

namespace stagecoach::engine {

StepTraces::StepTraces(const schedule::Schedule& lowered) {
  schedule::Trace trace = {.name = lowered.name,
                           .source = "measured",
                           .num_micro_batches = lowered.num_micro_batches,
                           .rank_of_stage = lowered.rank_of_stage};
  for (const std::vector<schedule::Action>& list : lowered.actions) {
    trace.actions.emplace_back(list.size());
  }
  ring_.assign(kTracedSteps, trace);
}

void StepTraces::End(int64_t step) {
  schedule::Trace& trace = Of(step);
  trace.step_ns = 0;
  for (const std::vector<schedule::TimedAction>& list : trace.actions) {
    for (const schedule::TimedAction& timed : list) {
      trace.step_ns = std::max(trace.step_ns, timed.end_ns);
    }
  }
}

std::vector<schedule::Trace> StepTraces::Recent(int64_t step) const {
  std::vector<schedule::Trace> traces;
  for (int64_t i = std::max<int64_t>(1, step - kTracedSteps + 1); i <= step; ++i) {
    traces.push_back(Of(i));
  }
  return traces;
}

}  // namespace stagecoach::engine
