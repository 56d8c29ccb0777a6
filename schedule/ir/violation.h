#ifndef STAGECOACH_SCHEDULE_IR_VIOLATION_H_
#define STAGECOACH_SCHEDULE_IR_VIOLATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// `rank` waits before the action at `position` of its list until `peer` has performed the action at
// `peer_position` of its own, or, if that is a collective, has reached it. In groups both are
// transfers or collectives: the ends of one message, or the same collective. The peer either has
// not started its group of that message, or has started it and waits there for the next rank of the
// cycle.
struct Wait {
  Rank rank;
  int32_t position = 0;
  Rank peer;
  int32_t peer_position = 0;
};

// The first rule that a schedule breaks.
struct Violation {
  Rank rank;              // none (-1) if the schedule as a whole is at fault
  int32_t position = -1;  // in the rank's list; -1: the action is missing, or no action is at fault
  // The action at fault or missing; stage and group are none (-1) if there is no such action.
  Action action;
  std::string reason;       // what is wrong, and what to change
  std::vector<Wait> cycle;  // for a deadlock: the shortest, each entry's peer being the next's rank
};

// Returns "rank 1, position 7 (stage 1 SEND_F micro-batch 3)".
std::string Where(const Schedule& schedule, Rank rank, int32_t position);

// Returns a violation by the action at `position`.
Violation ViolationAt(const Schedule& schedule, Rank rank, int32_t position, std::string reason);

// Returns the status that Validate returns.
absl::Status ToStatus(const Schedule& schedule, const Violation& violation);

// Draws the cycle as text, two lines per wait:
//   ┌─▶ rank 0 stands before SEND_F0.1 (position 4) until
//   │   rank 1 has performed RECV_F1.1 (position 6)
//   │   rank 1 stands before SEND_B1.0 (position 5) until
//   └── rank 0 has performed RECV_B0.0 (position 7)
std::string DrawCycle(const Schedule& lowered, const std::vector<Wait>& cycle);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IR_VIOLATION_H_
