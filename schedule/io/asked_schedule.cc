#include "schedule/io/asked_schedule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckCount(const char* what, const std::optional<int>& asked, int found) {
  if (!asked.has_value() || *asked == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the schedule in the file has ", found, " ", what,
                                                 ", but ", *asked, " were asked for"));
}

}  // namespace

absl::StatusOr<Schedule> ReadAskedSchedule(const std::string& path, const AskedShape& asked) {
  ASSIGN_OR_RETURN(Schedule schedule, ReadScheduleFile(path));
  RETURN_IF_ERROR(CheckCount("devices", asked.stages, schedule.num_ranks()));
  RETURN_IF_ERROR(CheckCount("micro-batches", asked.micro_batches, schedule.num_micro_batches));
  if (asked.chunks != 0) {
    RETURN_IF_ERROR(
        CheckCount("chunks", asked.chunks, schedule.num_stages() / schedule.num_ranks()));
  }
  return schedule;
}

}  // namespace stagecoach::schedule
