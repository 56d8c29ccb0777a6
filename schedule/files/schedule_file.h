#ifndef STAGECOACH_SCHEDULE_FILES_SCHEDULE_FILE_H_
#define STAGECOACH_SCHEDULE_FILES_SCHEDULE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// Schedules as files: PyTorch's CSV (csv.h) and this project's JSON, which keeps everything:
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
// "ranks" has for each rank the list of its actions, each in its short form (ToCode). A schedule
// with collectives also has the groups that they name, in order:
//
//     "groups": [{"name": "all", "ranks": [0, 1]}],

// Reads and proves (FindViolation, of the lowered form) a schedule in JSON. Every key above but
// "groups" is needed, and no other allowed. InvalidArgument names the line and column where it is
// not JSON, and else the line and the place in it, such as "line 9: $.ranks[1][3]", and what is
// wrong; for an action that lowering has added it is that of the compute action it belongs to. The
// first line is the whole error; of a deadlock, the waits follow. ResourceExhausted: nested too
// deeply. Safe on hostile input: memory is linear in the text.
absl::StatusOr<Schedule> ParseScheduleJson(absl::string_view text);

// The same from an object within a larger file, read to its end; errors name its place in there,
// without the line.
absl::StatusOr<Schedule> ReadSchedule(base::ObjectReader& reader);

// The inverse, a list of actions per paragraph: ParseScheduleJson(ToScheduleJson(s)) == s.
// Pre-condition: `schedule`, lowered, has no violation; its name is UTF-8.
std::string ToScheduleJson(const Schedule& schedule);

// Whether a path ends as the files below do, in upper or lower case, or is a stream (base/file.h).
bool IsScheduleFile(const std::string& path);

// Reads and proves the schedule in a file, a compute or a lowered one. The end of the path says the
// form: ".csv", where the name of the schedule is that of the file, or ".json"; of a stream, its
// first character does. Errors start with the path: those above; InvalidArgument for other endings;
// those of base::ReadInput (at most 256 MiB).
absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path);

// Replaces or creates the file (base::WriteFileAtomically), in the form that the end of the path
// says, and to a stream as JSON. InvalidArgument for other endings, and for a schedule that would
// come back from a CSV as another one. Pre-condition: as for ToScheduleCsv, ToScheduleJson.
absl::Status WriteScheduleFile(const std::string& path, const Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_FILES_SCHEDULE_FILE_H_
