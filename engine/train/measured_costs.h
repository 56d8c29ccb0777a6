#ifndef STAGECOACH_ENGINE_TRAIN_MEASURED_COSTS_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURED_COSTS_H_

#include <vector>

#include "absl/types/span.h"
#include "schedule/costs.h"
#include "schedule/memory.h"
#include "schedule/trace.h"

namespace stagecoach::engine {

// The costs that runs of one training schedule had, from their traces (of lowered schedules; at
// least one). A stage's times are means over the micro-batches of a step, and of those the median
// over the traces. Every pair of ranks has the same link: its speed is that at which messages
// passed once both ends were posted, its latency how long a rank that waited for one took to go on
// once it was there (median).
//
// `updates_in_backward`: the updates were part of the last micro-batch's W or BW (Costs). How much
// of it they took is what it took beyond the mean of the others, or, where there is no other W
// (BW), beyond BW - B (B + W); with a single micro-batch all counts as W or BW.
//
// A pass that the schedule does not have apart is estimated: BW as B + W; B and W, where there was
// only BW, as half of it each. Overlapped pairs were performed one after the other: they take the
// sum of both. `memory` (index: stage) gives the sizes of messages.
// A REDUCE takes what it took once the one before it of its rank was done, with the waits for other
// replicas (median). A collective takes what it took the slowest of its ranks once all had come to
// it (median).
schedule::Costs MeasureCosts(absl::Span<const schedule::Trace> traces, bool updates_in_backward,
                             std::vector<schedule::StageMemory> memory,
                             const schedule::CollectiveMemory& collective_memory = {});

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURED_COSTS_H_
