#ifndef STAGECOACH_SCHEDULE_IO_SCHEDULE_FILE_H_
#define STAGECOACH_SCHEDULE_IO_SCHEDULE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Schedules as files: PyTorch's CSV (csv.h), and this project's JSON, which keeps everything:
//
//   {
//     "format": "stagecoach-schedule",
//     "version": 1,
//     "name": "1f1b",
//     "micro_batches": 2,
//     "rank_of_stage": [0, 1],
//     "ranks": [
//       ["F0.0", "F0.1", "BW0.0", "BW0.1"],
//       ["F1.0", "BW1.0", "F1.1", "BW1.1"]
//     ]
//   }
//
// "ranks" lists, for each rank, its actions in short form (ToCode). A schedule with collectives
// also lists the groups that they name, in order:
//
//     "groups": [{"name": "all", "ranks": [0, 1]}],

// Reads and proves (FindViolation, on the lowered form) a schedule in JSON. Every key above except
// "groups" is required, and no other is allowed. InvalidArgument names the line and column of a
// syntax error, otherwise the line and the path of the value, such as "line 9: $.ranks[1][3]", and
// what is wrong; for an action that lowering has added, the path is that of its compute action. The
// first line is the whole error; after a deadlock, the waits follow. ResourceExhausted: nested too
// deeply. Safe on hostile input: memory is linear in the text.
absl::StatusOr<Schedule> ParseScheduleJson(absl::string_view text);

// Reads the same from an object within a larger file, to its end; errors name the path there,
// without the line.
absl::StatusOr<Schedule> ReadSchedule(base::ObjectReader& reader);

// Writes a schedule as JSON, a list of actions per paragraph: ParseScheduleJson(ToScheduleJson(s))
// == s. Pre-condition: `schedule`, lowered, has no violation; its name is UTF-8.
std::string ToScheduleJson(const Schedule& schedule);

// Returns true if the path ends as the files below do, in upper or lower case, or is a stream
// (base/system/file.h).
bool IsScheduleFile(const std::string& path);

// Reads and proves the schedule in a file, compute or lowered. The extension decides the format:
// ".csv", where the schedule takes the name of the file, or ".json"; for a stream, its first
// character decides. Errors start with the path: those above; InvalidArgument for other extensions;
// those of base::ReadInput (at most 256 MiB).
absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path);

// Replaces or creates the file (base::WriteFileAtomically), in the format of the extension; a
// stream gets JSON. InvalidArgument for other extensions, and for a schedule that would not read
// back from CSV unchanged. Pre-condition: that of ToScheduleCsv or ToScheduleJson.
absl::Status WriteScheduleFile(const std::string& path, const Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IO_SCHEDULE_FILE_H_
