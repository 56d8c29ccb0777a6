#include "engine/session/asked_schedule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::engine {
namespace {

absl::Status CheckCount(const char* flag, const std::optional<int>& asked, int found) {
  if (!asked.has_value() || *asked == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " is ", *asked, ", but the schedule in the file has ", found, ": leave the flag out"));
}

}  // namespace

absl::StatusOr<schedule::Schedule> ReadAskedSchedule(const std::string& path,
                                                     const AskedShape& asked) {
  ASSIGN_OR_RETURN(schedule::Schedule schedule, schedule::ReadScheduleFile(path));
  RETURN_IF_ERROR(CheckCount("--devices", asked.stages, schedule.num_ranks()));
  RETURN_IF_ERROR(CheckCount("--micro-batches", asked.micro_batches, schedule.num_micro_batches));
  if (asked.chunks != 0) {
    RETURN_IF_ERROR(
        CheckCount("--chunks", asked.chunks, schedule.num_stages() / schedule.num_ranks()));
  }
  return schedule;
}

}  // namespace stagecoach::engine
