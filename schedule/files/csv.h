#ifndef STAGECOACH_SCHEDULE_FILES_CSV_H_
#define STAGECOACH_SCHEDULE_FILES_CSV_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// The files in which PyTorch (torch.distributed.pipelining) keeps pipeline schedules. A row is a
// rank, a cell an action: stage, operation, micro-batch.
//
//   cell                 | action here
//   0F3                  | F of stage 0, micro-batch 3
//   0I3, 0W3, 0B3        | B, W, BW: there, "B" is the full backward pass and "I" the gradient of
//                        |   the input alone
//   (0F6;7B2)OVERLAP_F_B | two actions, the first with overlaps_next
//   0SEND_F3, 0RECV_B3   | sends and receives; also 0RECV_F3 and 0SEND_B3
//   0UNSHARD, 0RESHARD   | the same
//   0REDUCE_GRAD         | REDUCE
//   0WAIT_SEND_F3        | none, a run waits by itself; also 0WAIT_SEND_B3 and 0WAIT_REDUCE_GRAD.
//                        |   Comes once at most, after what it waits for
//   (empty)              | nothing to do; says nothing about the order
//
// A file with F, I, W and B alone is a compute schedule, any other a lowered one; REDUCE_GRAD in a
// file of several ranks that has no messages is left out, as PyTorch's GPipe has it. There is no
// STEP: a lowered schedule that trains gets one per stage at the end of each rank's list, stages
// ascending, as Lower puts them. The rank of a stage is the row it appears in; there is one more
// micro-batch than the largest number.

// Reads and proves (FindViolation, of the lowered form) a schedule. Accepts LF and CRLF, a UTF-8
// byte order mark, blanks and double quotes around cells, and empty lines at the end. `name`
// becomes the schedule's, as the format has none. InvalidArgument names row and column, both from
// 1, and what is wrong; for an action that lowering has added they are those of the compute action
// it belongs to. The first line is the whole error; of a deadlock, the waits follow. Safe on
// hostile input: memory is linear in the text.
absl::StatusOr<Schedule> ParseScheduleCsv(absl::string_view text, absl::string_view name);

// The inverse: ParseScheduleCsv(ToScheduleCsv(s), s.name) == s, if every rank has an action, the
// STEPs are where Lower puts them and there are no collectives, for which the format has no place.
// (But a lowered schedule that transfers nothing reads as a compute one.) A lowered schedule has
// the waits that PyTorch wants (as of 2.15), and is complete for PyTorch if it has a REDUCE of
// each stage, by which PyTorch also divides gradients by the number of micro-batches.
// Pre-condition: `schedule`, lowered, has no violation.
std::string ToScheduleCsv(const Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_FILES_CSV_H_
