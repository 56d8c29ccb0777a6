#ifndef STAGECOACH_SCHEDULE_TRANSFORMS_LOWERING_H_
#define STAGECOACH_SCHEDULE_TRANSFORMS_LOWERING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The place of a RESULTS in every list.
enum class ResultsPlace : uint8_t {
  kNowhere,
  kEnd,
  // If the schedule trains, before the STEPs and after a NORM: no rank updates parameters before
  // all ranks have everything that their updates need (CollectiveMemory::results_before_steps).
  kBeforeSteps,
};

struct LoweringOptions {
  // Adds a REDUCE per stage as soon as its gradients are complete, if the schedule trains: for
  // stages with replicas.
  bool reduce_gradients = false;
  // Adds a TIES to every list, before its NORM and its STEPs, if the schedule trains: for layers
  // that share parameters.
  bool sum_ties = false;
  // Adds a NORM to every list, before its STEPs, if the schedule trains: for gradients that are
  // clipped by their global norm.
  bool exchange_norms = false;
  // Adds a RESULTS to every list: for ranks that are separate processes.
  ResultsPlace results = ResultsPlace::kNowhere;
  // The share of the stashes that are kept long enough which are moved to the host meanwhile
  // (host_copies.h), if the schedule trains and has no OFFLOAD yet.
  double offload = 0.0;
  // How the result will be performed: decides where receives stand.
  Transfers transfers = Transfers::kSeparate;
};

// Turns a compute schedule into a lowered one (schedule.h). Between two operations of a rank (an
// action, or an overlapped pair) stand, in this order,
//  - the receives that are posted there;
//  - the sends of what the first of the two operations has filled.
// (For transfers in groups this holds at each moment: see below.) If the schedule trains, every
// rank's list ends with one STEP per stage, stages ascending; then come the sums over replicas and
// the collectives and the copies to and from the host (FitToRun).
//
// Under Transfers::kSeparate a receive is posted
//  - before the last operation that ends no later than its send is posted, if every F, B and W took
//    one unit of time, BW two and messages none;
//  - at least one operation before its reader (or at the start of the list), so that a sender that
//    is faster than that can deliver while the receiver still computes;
//  - not after a later one from the same rank: messages between an ordered pair of ranks are
//    received in the order in which the sender's operations fill them.
// The result is free of deadlock under rendezvous sends if the compute schedule's dependencies are
// free of cycles: in the timeline of those units every receive is posted no later than its send,
// and receives come first at any one time. The price of posting early is memory: a buffer lives
// from its receive on.
//
// Under Transfers::kGrouped the moment of an operation is its end in the same units, and that of a
// message is the moment of the operation that fills it. A receive stands before the first operation
// that ends later than its message is sent: a message that cannot come yet would hold up all groups
// after it. Between two operations, transfers stand in the order of their moments, and those of one
// moment form one group. A rank therefore has one group for a moment, with everything that it sends
// and receives then, and what two ranks exchange at a moment is in one group of both: the same
// messages, and in each direction in the same order. The result is free of deadlock in groups if
// the compute schedule's dependencies are free of cycles; and separately too, since a receive is
// again posted no later than its send. Proof. Every operation takes at least a unit, so the moments
// of a rank's operations ascend, and between two of moments a < b stand only transfers of moments
// in [a, b): sends of moment a, and receives by the rule (which posts each before its reader, as
// that ends later than the message is sent). So moments ascend along each list, with an operation's
// group after it; and what an operation reads has an earlier moment than the operation. Of
// everything that is left, let the earliest moment come first, operations before groups: it waits
// for nothing that is not done, as the groups that messages connect are of one moment. The proof
// assumes nothing about the placement, the number of stages per rank, or directions.
//
// Neighboring stages on one rank exchange nothing. InvalidArgument if the input is lowered already.
// FailedPrecondition if actions are misplaced or doubled, or the reader of a message is missing.
// Everything else is for Validate to find.
absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options = {});

// Turns a lowered schedule into one for the run of `options`, since a file may have been written
// for another.
//  - Removes UNSHARD and RESHARD, since every replica keeps all parameters, and REDUCE if
//    reduce_gradients is not set.
//  - Adds what is wanted and no rank has: a REDUCE of each stage that trains, behind the action
//    that completes its gradients, and the collectives, where LoweringOptions says. They use a
//    group of all ranks, named "all".
//  - Adds copies to and from the host (AddHostCopies).
// That keeps the schedule free of deadlock: no rank's TIES or NORM stands before an action for
// which a rank could wait without having reached its own, since transfers belong to passes, and all
// of these come first.
void FitToRun(const LoweringOptions& options, Schedule& lowered);

// Adds to a lowered schedule the REDUCE of each stage that trains, as LoweringOptions says, if no
// rank has one.
void AddReductions(Schedule& lowered);

// Appends, for each stage, an operation of the whole stage to its rank's list, stages ascending.
// Pre-condition: every stage is on one of the schedule's ranks.
void AppendToEachStage(Op op, Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRANSFORMS_LOWERING_H_
