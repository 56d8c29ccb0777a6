#include "schedule/ir/violation.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedule/ir/action.h"

namespace stagecoach::schedule {

std::string Where(const Schedule& schedule, Rank rank, int32_t position) {
  return absl::StrCat("rank ", rank.value(), ", position ", position, " (",
                      ToString(schedule.list_of(rank)[static_cast<size_t>(position)]), ")");
}

Violation ViolationAt(const Schedule& schedule, Rank rank, int32_t position, std::string reason) {
  Violation violation;
  violation.rank = rank;
  violation.position = position;
  violation.action = schedule.list_of(rank)[static_cast<size_t>(position)];
  violation.reason = std::move(reason);
  return violation;
}

absl::Status ToStatus(const Schedule& schedule, const Violation& violation) {
  std::string message;
  if (violation.position >= 0) {
    message = absl::StrCat(Where(schedule, violation.rank, violation.position), ": ");
  } else if (violation.rank.valid()) {
    message = absl::StrCat("rank ", violation.rank.value(), ": ");
  }
  absl::StrAppend(&message, violation.reason);
  if (!violation.cycle.empty()) {
    absl::StrAppend(&message, "\n", DrawCycle(schedule, violation.cycle));
  }
  return absl::FailedPreconditionError(message);
}

std::string DrawCycle(const Schedule& lowered, const std::vector<Wait>& cycle) {
  const auto code_at = [&](Rank rank, int32_t position) {
    return ToCode(lowered.list_of(rank)[static_cast<size_t>(position)]);
  };
  const auto is_collective = [&](const Wait& wait) {
    return IsCollective(lowered.list_of(wait.peer)[static_cast<size_t>(wait.peer_position)].op);
  };
  std::string text;
  for (size_t i = 0; i < cycle.size(); ++i) {
    const Wait& wait = cycle[i];
    const bool is_last = i + 1 == cycle.size();
    absl::StrAppend(&text, "  ", i == 0 ? "┌─▶ " : "│   ", "rank ", wait.rank.value(),
                    " stands before ", code_at(wait.rank, wait.position), " (position ",
                    wait.position, ") until\n", is_last ? "  └── " : "  │   ", "rank ",
                    wait.peer.value(), is_collective(wait) ? " has come to " : " has performed ",
                    code_at(wait.peer, wait.peer_position), " (position ", wait.peer_position,
                    ")\n");
  }
  return text;
}

}  // namespace stagecoach::schedule
