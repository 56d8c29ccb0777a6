#ifndef STAGECOACH_SCHEDULE_LOWERING_H_
#define STAGECOACH_SCHEDULE_LOWERING_H_

#include "absl/status/statusor.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

struct LoweringOptions {
  // Adds a REDUCE per stage before the steps: for stages with replicas.
  bool reduce_gradients = false;
};

// Turns a compute schedule into a lowered one (schedule.h). Between two operations of a rank (an
// action, or an overlapped pair) stand, in this order,
//  - the receives that are posted there. A receive is posted
//      before the last operation that ends no later than its send is posted, if every F, B and W
//      took one unit of time, BW two and messages none;
//      at least one operation before its reader (or at the start of the list), so that a sender
//      which is faster than that can deliver while the receiver still computes;
//      not after a later one from the same rank: messages between an ordered pair of ranks are
//      received in the order in which the sender's operations fill them;
//  - the sends of what the first of the two operations has filled.
// If the schedule trains, every rank's list ends with one STEP per stage, stages ascending, after
// one REDUCE per stage if asked for.
//
// The result is free of deadlock under rendezvous sends if the compute schedule's dependencies are
// free of cycles: in the timeline of those units every receive is posted no later than its send,
// and receives come first at any one time. The price of posting early is memory: a buffer lives
// from its receive on.
// Neighbouring stages on one rank exchange nothing.
// InvalidArgument if the input is lowered already. FailedPrecondition
// if actions are misplaced or doubled, or the reader of a message is missing. Everything else is
// for Validate to find.
absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options = {});

// Appends an operation of the whole stage for each stage to its rank's list, stages ascending.
// Pre-condition: every stage is on one of the schedule's ranks.
void AppendToEachStage(Op op, Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_LOWERING_H_
