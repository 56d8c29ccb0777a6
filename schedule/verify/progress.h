#ifndef STAGECOACH_SCHEDULE_VERIFY_PROGRESS_H_
#define STAGECOACH_SCHEDULE_VERIFY_PROGRESS_H_

#include <vector>

#include "schedule/ir/action_table.h"
#include "schedule/ir/schedule.h"
#include "schedule/transforms/transfer_groups.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {

// Performs a lowered schedule under rendezvous sends: a send waits until its receive is posted, a
// compute action until the send of what it reads is done, a collective until all ranks of its group
// stand before it. Returns the shortest cycle of waits, each entry's peer being the next one's
// rank, or nothing if every rank reaches the end of its list. Pre-condition: the schedule keeps
// rules 1 to 4 of Validate, and `table` is its table. What a blocked rank waits for then stands in
// the list of another one, so a rank that never continues leads into a cycle.
std::vector<Wait> FindDeadlock(const Schedule& lowered, const ActionTable& table);

// Does the same under Transfers::kGrouped, where the groups that messages connect are one moment:
// none of them is done before all have started. That demands more than any order in which a library
// may perform the messages of a group, and does not depend on that order. A rank may also wait for
// one that has started its group of the moment, because that one waits for a third. Computations
// need not be considered: by rule 3 each of them waits only for groups that stand before it, so a
// group's turn comes as soon as the one before it is done. Pre-condition: `groups` are the
// schedule's.
std::vector<Wait> FindDeadlockInGroups(const Schedule& lowered, const ActionTable& table,
                                       const TransferGroups& groups);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_VERIFY_PROGRESS_H_
