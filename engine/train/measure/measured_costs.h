#ifndef STAGECOACH_ENGINE_TRAIN_MEASURE_MEASURED_COSTS_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURE_MEASURED_COSTS_H_

#include <vector>

#include "absl/types/span.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"
#include "schedule/traces/trace.h"

namespace stagecoach::engine {

// Returns the costs of runs of one training schedule, from their traces (of lowered schedules; at
// least one). A stage's times are medians over the traces of the means over the micro-batches of a
// step. Every pair of ranks has the same link: its speed is that at which messages passed once both
// ends were posted, its latency the time that a rank that waited for one took to continue once it
// was there (median). The link to the host's memory has the speed of all copies together.
//
// `updates_in_backward`: the updates were part of the last micro-batch's W or BW (Costs). Their
// time is what that took beyond the mean of the others, or, if there is no other W (BW), beyond BW
// - B (B + W); with a single micro-batch, all counts as W or BW.
//
// A pass that the schedule does not have separately is estimated: BW as B + W; B and W, if there
// was only BW, as half of it each. Overlapped pairs ran one after the other: they take the sum of
// both. `memory` (index: stage) has the sizes of messages. The time of a REDUCE counts from the end
// of its rank's REDUCE before it, with the waits for other replicas (median). The time of a
// collective is that of the slowest of its ranks once all had arrived (median).
schedule::Costs MeasureCosts(absl::Span<const schedule::Trace> traces, bool updates_in_backward,
                             std::vector<schedule::StageMemory> memory,
                             const schedule::CollectiveMemory& collective_memory = {});

// Returns the larger of the two in the middle if their number is even; 0 if there are none.
double Median(std::vector<double> values);

// Returns the time from the arrival of a message until the rank that waited for it computes: the
// first quartile over all messages that a rank waited for, since others count in addition how long
// the system let the rank's thread wait for a core. 0 if no rank waited.
double MessageNs(absl::Span<const schedule::Trace> traces);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURE_MEASURED_COSTS_H_
