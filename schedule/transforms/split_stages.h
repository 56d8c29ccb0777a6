#ifndef STAGECOACH_SCHEDULE_TRANSFORMS_SPLIT_STAGES_H_
#define STAGECOACH_SCHEDULE_TRANSFORMS_SPLIT_STAGES_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Splits the same work into smaller steps: each stage becomes `parts[stage]` consecutive stages of
// its rank, which performs each pass as one pass of every part, forward in their order and backward
// in reverse. Nothing is sent between the parts. Where stages have replicas, the gradients of a
// part can be exchanged while the passes of the parts before it run (REDUCE). InvalidArgument: the
// schedule is lowered, or has overlapped pairs, whose halves would no longer be performed together;
// `parts` is not one number of at least 1 for each stage.
absl::StatusOr<Schedule> SplitStages(const Schedule& compute, absl::Span<const int> parts);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRANSFORMS_SPLIT_STAGES_H_
