#ifndef STAGECOACH_ENGINE_SESSION_ASKED_SCHEDULE_H_
#define STAGECOACH_ENGINE_SESSION_ASKED_SCHEDULE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::engine {

// The shape of a schedule, as far as it was asked for.
struct AskedShape {
  std::optional<int> stages;  // devices
  std::optional<int> micro_batches;
  int chunks = 0;  // 0: not asked for
};

// Reads a schedule from a file and proves it. InvalidArgument: it has another shape than was asked
// for.
absl::StatusOr<schedule::Schedule> ReadAskedSchedule(const std::string& path,
                                                     const AskedShape& asked);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_ASKED_SCHEDULE_H_
