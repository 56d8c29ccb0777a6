#ifndef STAGECOACH_SCHEDULE_IO_CSV_H_
#define STAGECOACH_SCHEDULE_IO_CSV_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The CSV files in which PyTorch (torch.distributed.pipelining) keeps pipeline schedules. A row is
// a rank, a cell an action: stage, operation, micro-batch.
//
//   cell                 | action here
//   0F3                  | F of stage 0, micro-batch 3
//   0I3, 0W3, 0B3        | B, W, BW: in these files "B" is the full backward pass and "I" the
//                        |   gradient of the input alone
//   (0F6;7B2)OVERLAP_F_B | two actions, the first with overlaps_next
//   0SEND_F3, 0RECV_B3   | sends and receives; also 0RECV_F3 and 0SEND_B3
//   0UNSHARD, 0RESHARD   | the same
//   0REDUCE_GRAD         | REDUCE
//   0WAIT_SEND_F3        | none, since a run waits by itself; also 0WAIT_SEND_B3 and
//                        |   0WAIT_REDUCE_GRAD. Appears at most once, after what it waits for
//   (empty)              | nothing to do; does not affect the order
//
// A file with only F, I, W and B is a compute schedule, any other a lowered one; REDUCE_GRAD is
// dropped from a file of several ranks without messages, such as PyTorch's GPipe. The format has no
// STEP: a lowered schedule that trains gets one per stage at the end of each rank's list, stages
// ascending, where Lower puts them. The rank of a stage is the row in which it appears; the number
// of micro-batches is the largest index plus one.

// Reads and proves (FindViolation, on the lowered form) a schedule. Accepts LF and CRLF, a UTF-8
// byte order mark, blanks and double quotes around cells, and empty lines at the end. `name`
// becomes the schedule's name, since the format has none. InvalidArgument names row and column,
// both counted from 1, and what is wrong; for an action that lowering has added, the row and column
// are those of its compute action. The first line is the whole error; after a deadlock, the waits
// follow. Safe on hostile input: memory is linear in the text.
absl::StatusOr<Schedule> ParseScheduleCsv(absl::string_view text, absl::string_view name);

// Writes a schedule as CSV. ParseScheduleCsv(ToScheduleCsv(s), s.name) == s if every rank has an
// action, the STEPs are where Lower puts them and no stash is moved to the host and there are no
// collectives, which the format cannot express. (But a lowered schedule without transfers reads as
// a compute one.) A lowered schedule gets the waits that PyTorch needs (as of 2.15), and is
// complete for PyTorch if it has a REDUCE of each stage, by which PyTorch also divides gradients by
// the number of micro-batches. Pre-condition: `schedule`, lowered, has no violation.
std::string ToScheduleCsv(const Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IO_CSV_H_
