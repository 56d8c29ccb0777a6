#ifndef STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_
#define STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_

#include <random>

#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Decides when the messages of a group pass.
struct GroupRule {
  // The number of channels on which NCCL performs them (tests/testing/nccl_batches.h); 0: once all
  // groups have started that messages connect with this one.
  int channels = 0;
};

// Performs a lowered schedule without collectives action by action, in random order, in an
// independent and deliberately simple way that follows Transfers::kGrouped literally. Returns false
// if some rank does not complete. Pre-condition: rules 1 to 4 of Validate.
bool EveryRankEnds(const Schedule& lowered, GroupRule rule, std::mt19937& random);

// Returns the schedule with all transfers between two other actions in one group, receives first.
Schedule WithLargestGroups(Schedule lowered);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_
