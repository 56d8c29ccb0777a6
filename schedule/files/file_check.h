#ifndef STAGECOACH_SCHEDULE_FILES_FILE_CHECK_H_
#define STAGECOACH_SCHEDULE_FILES_FILE_CHECK_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// Says where in a file the action at `index` of the rank's list stands; the list's size, or more,
// stands for its end. In the words of the file's format, "row 2, column 17".
using NamePlace = std::function<std::string(Rank rank, size_t index)>;

// As many ranks with a stage each as CheckSize lets pass.
inline constexpr int kMaxFileRanks = 1 << 12;

// InvalidArgument if the checks of a schedule would take unreasonable time or memory: stages x
// micro-batches or stages x ranks above kMaxPasses. Pre-condition: no count is negative.
absl::Status CheckSize(const Schedule& schedule);

// Proves a schedule that was read from a file, in its lowered form if it is a compute schedule.
// InvalidArgument is the first rule that it breaks (FindViolation), with the place in the file: of
// the action at fault, of the compute action that an added transfer belongs to, or of the end of
// the list that lacks an action. The first line is the whole error; of a deadlock, each further
// line is a wait. Not part of the public interface.
absl::Status ProveFromFile(const Schedule& schedule, const NamePlace& name_place);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_FILES_FILE_CHECK_H_
