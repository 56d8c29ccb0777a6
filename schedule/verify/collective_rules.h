#ifndef STAGECOACH_SCHEDULE_VERIFY_COLLECTIVE_RULES_H_
#define STAGECOACH_SCHEDULE_VERIFY_COLLECTIVE_RULES_H_

#include <optional>

#include "schedule/ir/action_table.h"
#include "schedule/ir/schedule.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {

// The validator's rules about collectives (validator.h). `table` is the schedule's.

// Checks rule 2. Pre-condition: the schedule keeps rules 1 and 2 otherwise.
std::optional<Violation> FindMisplacedCollective(const Schedule& lowered, const ActionTable& table);

// Checks rule 7. Pre-condition: the schedule keeps rules 1 to 6.
std::optional<Violation> FindUnmatchedCollective(const Schedule& lowered, const ActionTable& table);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_VERIFY_COLLECTIVE_RULES_H_
