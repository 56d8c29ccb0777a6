#ifndef STAGECOACH_SCHEDULE_MEMORY_STASH_H_
#define STAGECOACH_SCHEDULE_MEMORY_STASH_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The part of a micro-batch that one stage keeps on its device, in any unit: `forward` from F until
// B (or BW), except from RELEASE to FETCH, then `weight` until W. These are M_B and M_W of the
// zero-bubble paper (Qi et al. 2023).
struct StageStash {
  double forward = 1.0;
  double weight = 0.0;
};

// Returns the stash of stages that divide a device evenly: the unit is what a whole device stashes
// of a micro-batch, of which a stage has 1 / (stages on its rank); the share `weight_share` of that
// remains from B until W. Index: stage.
std::vector<StageStash> UnitStash(const std::vector<Rank>& rank_of_stage, double weight_share);

// Returns what each rank keeps after each action of its list. 0 throughout for a forward-only
// schedule, which keeps nothing. `stash`: index stage. Accepts compute and lowered schedules.
// Pre-condition: every action names a stage and a micro-batch of the schedule.
std::vector<std::vector<double>> StashAfter(const Schedule& schedule,
                                            absl::Span<const StageStash> stash);

// Returns each rank's maximum of StashAfter.
std::vector<double> PeakStash(const Schedule& schedule, absl::Span<const StageStash> stash);

// Returns FailedPrecondition with rank, place in its list, need and limit, for the first time that
// a rank keeps more than its limit. `limit`: index rank.
absl::Status CheckStash(const Schedule& schedule, absl::Span<const StageStash> stash,
                        absl::Span<const double> limit);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_MEMORY_STASH_H_
