#ifndef STAGECOACH_SCHEDULE_VALIDATOR_H_
#define STAGECOACH_SCHEDULE_VALIDATOR_H_

#include <vector>

#include "absl/status/status.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// Proves a lowered schedule before anything runs. Checked, in this order:
//  1. Placement: there is a stage and a micro-batch; every stage has a rank of the schedule; every
//     action names a stage of its own rank, a micro-batch below num_micro_batches and, if it is a
//     transfer, a stage with a neighbour on another rank; no action appears twice.
//  2. Completeness: each stage performs each micro-batch's F exactly once; in a training schedule
//     also either BW or both B and W exactly once, and exactly one kStep after all of them; in a
//     forward-only one neither backward actions nor kStep.
//  3. Order on a rank: F before B (or BW) before W of the same micro-batch; backward actions and
//     weight actions of a stage in micro-batch order 0, 1, 2, ... (the order of summation is part
//     of the interface); a buffer is sent after it is filled, and a receive is posted before its
//     use; of neighbouring stages on one rank, the earlier one's F and the later one's B come
//     first.
//  4. Matching: what neighbouring stages on different ranks exchange is sent once and received
//     once, and between each ordered pair of ranks the k-th send and the k-th receive carry the
//     same message.
//  5. Progress: under *rendezvous* sends (a send completes only once its receive was posted;
//     nothing is buffered) every rank reaches the end of its list.
//  6. If `stash_limit` is not empty: on rank r at most stash_limit[r] forward results are kept at
//     once (PeakStash).
// The first broken rule is returned as FailedPrecondition with rank, position, action and peer; a
// deadlock names the shortest cycle of waits. InvalidArgument if `stash_limit` has neither no entry
// nor one per rank. Time and memory are linear in the number of actions and (ranks x stages).
absl::Status Validate(const Schedule& lowered, const std::vector<int>& stash_limit = {});

// For each rank, the largest number of micro-batches (counted per stage on that rank) between F and
// B (or BW). 0 on every rank of a forward-only schedule, which keeps nothing. Accepts compute and
// lowered schedules.
std::vector<int> PeakStash(const Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_VALIDATOR_H_
