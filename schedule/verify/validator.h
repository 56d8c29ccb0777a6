#ifndef STAGECOACH_SCHEDULE_VERIFY_VALIDATOR_H_
#define STAGECOACH_SCHEDULE_VERIFY_VALIDATOR_H_

#include <optional>

#include "absl/status/status.h"
#include "schedule/ir/schedule.h"
#include "schedule/ir/violation.h"

namespace stagecoach::schedule {

// Proves a lowered schedule before anything runs. Checks, in this order:
//  1. Placement: there is a stage and a micro-batch; every stage has a rank of the schedule; every
//     action names a stage of its own rank, a micro-batch below num_micro_batches (none, if it is
//     of the whole stage) and, if it is a transfer, a stage with a neighbor on another rank; every
//     collective names a group that contains its rank; no action except UNSHARD and RESHARD appears
//     twice. An overlapped pair is an F and a B or BW, in either order, of different micro-batches,
//     or two transfers.
//  2. Completeness: each stage performs each micro-batch's F exactly once; in a training schedule
//     also either BW or both B and W exactly once, and exactly one STEP after all of them; at most
//     one REDUCE between them and the STEP; in a forward-only one neither backward actions nor
//     REDUCE nor STEP. A collective that one rank performs, all ranks of the schedule perform, in
//     one group that contains them all: TIES and NORM, in training only, after everything that
//     completes the gradients of the rank's stages and before their STEPs, TIES before NORM;
//     RESULTS after every F of the last stage, in training after every B.
//  3. Order on a rank: F before B (or BW) before W of the same micro-batch; backward actions and
//     weight actions of a stage in micro-batch order 0, 1, 2, ... (the order of summation is part
//     of the interface); a buffer is sent after it is filled, and a receive is posted before its
//     use; of neighboring stages on one rank, the earlier one's F and the later one's B come first;
//     an OFFLOAD comes after its F, its RELEASE after it, its FETCH after that, before B; none of
//     the three without the others, or in a forward-only schedule.
//  4. Matching: what neighboring stages on different ranks exchange is sent once and received once,
//     and between each ordered pair of ranks the k-th send and the k-th receive carry the same
//     message.
//  5. Progress: under *rendezvous* sends (a send waits until its receive was posted; nothing is
//     buffered; one send per lane is outstanding; a collective is a moment at which all ranks of
//     its group stand before it) every rank reaches the end of its list. So all ranks of a group
//     perform its collectives in the same order.
//  6. Under Transfers::kGrouped (schedule.h) only: no group has two sends on one lane; messages
//     between two ranks that are in one group of either are in one group of the other; and every
//     rank's groups complete, if those that messages connect are one moment: none is done before
//     all of them have started, and nothing is buffered. Neither of rules 5 and 6 follows from the
//     other.
//  7. Matching, of collectives: what a rank receives before a collective, the sender sends before
//     it, if it takes part. A collective is made of messages itself.
// Limits of the stash: stash.h. Time and memory are linear in the number of actions and (ranks x
// stages).
std::optional<Violation> FindViolation(const Schedule& lowered,
                                       Transfers transfers = Transfers::kSeparate);

// Returns FindViolation as FailedPrecondition: rank, position, action and reason in one line; after
// a deadlock, the shortest cycle of waits, drawn in further lines.
absl::Status Validate(const Schedule& lowered, Transfers transfers = Transfers::kSeparate);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_VERIFY_VALIDATOR_H_
