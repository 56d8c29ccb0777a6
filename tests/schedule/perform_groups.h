#ifndef STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_
#define STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_

#include <random>

#include "schedule/schedule.h"

namespace stagecoach::schedule {

// When the messages of a group pass.
struct GroupRule {
  // As NCCL performs them on so many channels (tests/testing/nccl_batches.h); 0: once all groups
  // have started that messages connect with this one.
  int channels = 0;
};

// Performs a lowered schedule without collectives action by action, in random order, in an
// independent and deliberately simple way: what Transfers::kGrouped says, word by word. False: some
// rank does not come to its end. Pre-condition: rules 1 to 4 of Validate.
bool EveryRankEnds(const Schedule& lowered, GroupRule rule, std::mt19937& random);

// The schedule with all transfers between two other actions in one group, receives first.
Schedule WithLargestGroups(Schedule lowered);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_PERFORM_GROUPS_H_
