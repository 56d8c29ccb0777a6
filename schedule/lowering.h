#ifndef STAGECOACH_SCHEDULE_LOWERING_H_
#define STAGECOACH_SCHEDULE_LOWERING_H_

#include "absl/status/statusor.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

struct LoweringOptions {
  // How many compute actions before its use a receive is posted. With 1, a sender that finishes
  // while the receiver still computes can deliver at once and go on; the price is one more receive
  // buffer. With 0, ranks that send to each other at the same time deadlock under rendezvous sends:
  // Validate refuses 1F1B with two or more ranks and micro-batches. Must be >= 0.
  int receive_lead = 1;
};

// Turns a compute schedule into a lowered one (schedule.h). Adds
//  - the send right after the compute action that fills its buffer;
//  - the receive right before the compute action that stands `receive_lead` compute actions ahead
//    of its reader (or at the start of the list), and thus before the sends of every action from
//    there on. Messages of an ordered pair of ranks are received in the order in which the
//    sender's compute actions fill them: a receive whose turn has not come by its own lead pulls
//    the earlier ones of its pair forward with it. Posting early cannot block, it only makes
//    buffers live longer;
//  - if the schedule trains, one kStep per stage at the end of its rank's list, stages ascending.
// Neighbouring stages on one rank exchange nothing.
// InvalidArgument if the input is lowered already or an option is out of range. FailedPrecondition
// if actions are misplaced or doubled, or the reader of a message is missing. Everything else is
// for Validate to find.
absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_LOWERING_H_
