#include "schedule/io/file_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {
namespace {

// The schedule as read, and the lowered form in which it was checked.
class FileError {
 public:
  FileError(const Schedule& read, const Schedule& checked, const NamePlace& name_place)
      : read_(read), checked_(checked), name_(name_place) {}

  absl::Status ToStatus(const Violation& violation) const;

 private:
  std::string PlaceOf(Rank rank, int32_t position) const {
    return name_(rank, IndexOf(rank, position));
  }
  size_t IndexOf(Rank rank, int32_t position) const;
  const Action& CheckedAt(Rank rank, int32_t position) const {
    return checked_.list_of(rank)[static_cast<size_t>(position)];
  }

  const Schedule& read_;
  const Schedule& checked_;
  const NamePlace& name_;
};

// Returns where in the list that was read the action at `position` of the checked list, or the
// compute action it belongs to, stands. Lowering keeps the compute actions and their order.
size_t FileError::IndexOf(Rank rank, int32_t position) const {
  const std::vector<Action>& read = read_.list_of(rank);
  if (position < 0) return read.size();
  if (read_.IsLowered()) return static_cast<size_t>(position);
  const Action& action = CheckedAt(rank, position);
  if (IsCompute(action.op)) {
    const auto begin = checked_.list_of(rank).begin();
    return static_cast<size_t>(
        std::count_if(begin, begin + position, [](const Action& a) { return IsCompute(a.op); }));
  }
  if (!IsTransfer(action.op)) return read.size();
  const Op compute = ComputeOf(action.op);
  const auto at = std::find_if(read.begin(), read.end(), [&](const Action& a) {
    const Op op = a.op == Op::kBackward ? Op::kBackwardInput : a.op;
    return op == compute && a.stage == action.stage && a.micro_batch == action.micro_batch;
  });
  return static_cast<size_t>(at - read.begin());
}

absl::Status FileError::ToStatus(const Violation& violation) const {
  if (!violation.rank.valid()) return absl::InvalidArgumentError(violation.reason);
  std::string text = absl::StrCat(PlaceOf(violation.rank, violation.position), ": ");
  // The reason names an action that is missing, but not one that exists.
  if (violation.position >= 0) absl::StrAppend(&text, ToString(violation.action), ": ");
  absl::StrAppend(&text, violation.reason);
  for (const Wait& wait : violation.cycle) {
    absl::StrAppend(&text, "\n  ", PlaceOf(wait.rank, wait.position), ": ",
                    ToString(CheckedAt(wait.rank, wait.position)), " waits for ",
                    ToString(CheckedAt(wait.peer, wait.peer_position)), " at ",
                    PlaceOf(wait.peer, wait.peer_position));
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace

static_assert(kMaxFileRanks * kMaxFileRanks == kMaxPasses);

absl::Status CheckSize(const Schedule& schedule) {
  const auto check = [&schedule](int count, absl::string_view what) {
    if (int64_t{schedule.num_stages()} * count <= kMaxPasses) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(schedule.num_stages(), " stages times ", count,
                                                   " ", what, " is above the limit of ",
                                                   kMaxPasses));
  };
  const absl::Status passes = check(schedule.num_micro_batches, "micro-batches");
  return passes.ok() ? check(schedule.num_ranks(), "ranks") : passes;
}

absl::Status ProveFromFile(const Schedule& schedule, const NamePlace& name_place) {
  if (schedule.IsLowered()) {
    const std::optional<Violation> violation = FindViolation(schedule);
    if (!violation.has_value()) return absl::OkStatus();
    return FileError(schedule, schedule, name_place).ToStatus(*violation);
  }
  const absl::StatusOr<Schedule> lowered = Lower(schedule);
  // Whatever makes Lower fail breaks a rule that comes before those about transfers, so the
  // violation can be found without transfers, and has a place.
  Schedule checked = schedule;
  if (lowered.ok()) {
    checked = *lowered;
  } else {
    if (checked.HasBackward()) AppendToEachStage(Op::kStep, checked);
  }
  const std::optional<Violation> violation = FindViolation(checked);
  if (violation.has_value()) return FileError(schedule, checked, name_place).ToStatus(*violation);
  if (lowered.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(lowered.status().message());
}

}  // namespace stagecoach::schedule
