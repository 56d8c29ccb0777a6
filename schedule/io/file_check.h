#ifndef STAGECOACH_SCHEDULE_IO_FILE_CHECK_H_
#define STAGECOACH_SCHEDULE_IO_FILE_CHECK_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Returns where in a file the action at `index` of the rank's list stands, in the terms of the
// file's format: "row 2, column 17". An index of the list's size or more stands for its end.
using NamePlace = std::function<std::string(Rank rank, size_t index)>;

// The most ranks, with a stage each, that CheckSize accepts.
inline constexpr int kMaxFileRanks = 1 << 12;

// Returns InvalidArgument if checking the schedule would take unreasonable time or memory: stages x
// micro-batches or stages x ranks above kMaxPasses. Pre-condition: no count is negative.
absl::Status CheckSize(const Schedule& schedule);

// Proves a schedule that was read from a file, in its lowered form if it is a compute schedule.
// InvalidArgument is the first rule that it breaks (FindViolation), with a place in the file: that
// of the action at fault, of the compute action that an added transfer belongs to, or of the end of
// the list that lacks an action. The first line is the whole error; after a deadlock, each further
// line is a wait. Not part of the public interface.
absl::Status ProveFromFile(const Schedule& schedule, const NamePlace& name_place);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IO_FILE_CHECK_H_
