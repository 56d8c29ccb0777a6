#ifndef STAGECOACH_SCHEDULE_LOWERING_H_
#define STAGECOACH_SCHEDULE_LOWERING_H_

#include "absl/status/statusor.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

struct LoweringOptions {
  // Adds a REDUCE per stage before the steps: for stages with replicas.
  bool reduce_gradients = false;
  // Adds a NORM to every list, before its STEPs, if the schedule trains: for gradients that are
  // clipped by their global norm.
  bool exchange_norms = false;
  // Adds a RESULTS to the end of every list: for ranks that are processes of their own.
  bool share_results = false;
  // How the result is to be performed: decides where receives stand.
  Transfers transfers = Transfers::kSeparate;
};

// Turns a compute schedule into a lowered one (schedule.h). Between two operations of a rank (an
// action, or an overlapped pair) stand, in this order,
//  - the receives that are posted there;
//  - the sends of what the first of the two operations has filled.
// If the schedule trains, every rank's list ends with one STEP per stage, stages ascending, after
// one REDUCE per stage if asked for; then come the collectives (AddCollectives).
//
// Under Transfers::kSeparate a receive is posted
//      before the last operation that ends no later than its send is posted, if every F, B and W
//      took one unit of time, BW two and messages none;
//      at least one operation before its reader (or at the start of the list), so that a sender
//      which is faster than that can deliver while the receiver still computes;
//      not after a later one from the same rank: messages between an ordered pair of ranks are
//      received in the order in which the sender's operations fill them.
// The result is free of deadlock under rendezvous sends if the compute schedule's dependencies are
// free of cycles: in the timeline of those units every receive is posted no later than its send,
// and receives come first at any one time. The price of posting early is memory: a buffer lives
// from its receive on.
//
// Under Transfers::kGrouped a receive stands before the first operation that ends, in the same
// units, later than its message is sent: a message that cannot come yet would hold up the rest of
// its group, and all groups after it. The result is free of deadlock in groups if the compute
// schedule's dependencies are free of cycles; and separately too, as a receive is again posted no
// later than its send. Proof. Let the moment of an operation be its end in the timeline, and that
// of a message the moment of the operation that fills it. Every operation takes at least a unit, so
// the moments of a rank's operations ascend, and the group between two of moments a < b has only
// messages of moments in [a, b): sends of moment a, and receives by the rule (which posts each
// before its reader, as that ends later than the message is sent). Then nothing waits for anything
// of a later moment:
//  - an operation of moment b waits for operations before it on its rank, of earlier moments, and
//    for groups before it, whose messages are all earlier than b;
//  - a message of moment t waits for the groups of both its ends to start, [a, b) with a <= t each:
//    for an operation of moment a, and for the group before, whose messages are all earlier than a;
//    and for messages before it from the same rank to the same rank in its group, whose moments are
//    not later, as they come in the sender's order.
// At one moment, messages wait for operations but not the reverse, and for other messages only in
// their sender's order. So of all that is left, what comes first (by moment, operations before
// messages, messages in their sender's order) can always be performed. Nothing is asked of the
// placement, of the number of stages per rank, or of directions.
// Neighboring stages on one rank exchange nothing.
// InvalidArgument if the input is lowered already. FailedPrecondition
// if actions are misplaced or doubled, or the reader of a message is missing. Everything else is
// for Validate to find.
absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options = {});

// Adds to a lowered schedule those of the wanted collectives that no rank of it has, as
// LoweringOptions says where; they are of a group of all ranks, named "all". That keeps the
// schedule free of deadlock: no rank's NORM stands before an action for which a rank could wait
// without having come to its own, since transfers belong to passes, and all of these come first.
void AddCollectives(const LoweringOptions& options, Schedule& lowered);

// Appends an operation of the whole stage for each stage to its rank's list, stages ascending.
// Pre-condition: every stage is on one of the schedule's ranks.
void AppendToEachStage(Op op, Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_LOWERING_H_
