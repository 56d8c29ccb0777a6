#ifndef STAGECOACH_SCHEDULE_IO_ASKED_SCHEDULE_H_
#define STAGECOACH_SCHEDULE_IO_ASKED_SCHEDULE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The shape of a schedule, as far as a user asked for it.
struct AskedShape {
  std::optional<int> stages;  // devices
  std::optional<int> micro_batches;
  int chunks = 0;  // 0: not asked for
};

// Reads a schedule from a file and proves it. InvalidArgument: it has another shape than was asked
// for.
absl::StatusOr<Schedule> ReadAskedSchedule(const std::string& path, const AskedShape& asked);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IO_ASKED_SCHEDULE_H_
