#ifndef STAGECOACH_TESTS_SCHEDULE_TRACES_TRACES_H_
#define STAGECOACH_TESTS_SCHEDULE_TRACES_TRACES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "schedule/simulate/simulate.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// Builds a trace from text: one string per rank, its actions as in "F0.1@5-10 SEND_F0.1@10:12-15":
// code (ParseCode), when it was reached (if not at its start), started and ended. The step ends
// with the last action. Aborts if the text does not have that form or CheckTrace refuses the trace.
Trace TraceFromText(const std::vector<int>& rank_of_stage, int num_micro_batches,
                    const std::vector<std::string>& lists);

// Returns a simulated step of a generated schedule, with sizes, latency and a STEP per stage.
Trace SimulatedTrace(absl::string_view name, int ranks, int micro_batches, Sends sends);

// Returns the same with each stage's times up to 30 % longer or shorter, a function of `seed`; and
// with 0 to 50 us, also random, between each action and the next.
Trace DisturbedTrace(absl::string_view name, int ranks, int micro_batches, Sends sends,
                     uint64_t seed);

// Returns the names of all generators. Each accepts any multiple of the ranks from 2 on as
// micro-batches.
std::vector<std::string> GeneratorNames();

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_TRACES_TRACES_H_
