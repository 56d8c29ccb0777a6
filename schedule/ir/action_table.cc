#include "schedule/ir/action_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::schedule {
namespace {

// Returns false if something is wrong, which `violation` then describes.
bool CheckPlacement(const Schedule& schedule, Violation& violation) {
  if (schedule.num_stages() < 1 || schedule.num_micro_batches < 1) {
    violation.reason =
        absl::StrCat("a schedule needs at least 1 stage and 1 micro-batch, this one has ",
                     schedule.num_stages(), " and ", schedule.num_micro_batches);
    return false;
  }
  for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of(stage).value();
    if (rank < 0 || rank >= schedule.num_ranks()) {
      violation.reason = absl::StrCat("stage ", stage.value(), " is placed on rank ", rank,
                                      ", but the schedule has ", schedule.num_ranks(), " ranks");
      return false;
    }
  }
  for (size_t i = 0; i < schedule.groups.size(); ++i) {
    const std::vector<Rank>& ranks = schedule.groups[i].ranks;
    const bool ascends =
        std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
    if (!ranks.empty() && ascends && ranks.front().value() >= 0 &&
        ranks.back().value() < schedule.num_ranks()) {
      continue;
    }
    violation.reason = absl::StrCat("group ", i, " must have at least 1 rank, in ascending order, ",
                                    "of the schedule's ", schedule.num_ranks(), " ranks");
    return false;
  }
  return true;
}

// Returns true if the action at `position` and the next can be performed together.
bool IsPair(const std::vector<Action>& list, size_t position) {
  if (position + 1 >= list.size()) return false;
  const Action& a = list[position];
  const Action& b = list[position + 1];
  if (IsTransfer(a.op) && IsTransfer(b.op)) return true;
  if (b.overlaps_next || a.micro_batch == b.micro_batch) return false;
  const auto is_dx = [](Op op) { return op == Op::kBackwardInput || op == Op::kBackward; };
  return (a.op == Op::kForward && is_dx(b.op)) || (is_dx(a.op) && b.op == Op::kForward);
}

}  // namespace

ActionTable::ActionTable(const Schedule& schedule)
    : first_cell_(static_cast<size_t>(schedule.num_stages())),
      reduces_(static_cast<size_t>(schedule.num_stages()), kNowhere),
      steps_(static_cast<size_t>(schedule.num_stages()), kNowhere) {
  size_t members = 0;
  for (const CollectiveGroup& group : schedule.groups) {
    first_member_.push_back(members);
    members += group.ranks.size();
  }
  std::array<int32_t, kNumCollectiveOps> empty;
  empty.fill(kNowhere);
  collectives_.resize(members, empty);
}

std::optional<ActionTable> ActionTable::Build(const Schedule& schedule, Violation& violation) {
  if (!CheckPlacement(schedule, violation)) return std::nullopt;
  ActionTable table(schedule);
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    if (!table.AddRank(schedule, rank, violation)) return std::nullopt;
  }
  return table;
}

absl::StatusOr<ActionTable> ActionTable::Build(const Schedule& schedule) {
  Violation violation;
  std::optional<ActionTable> table = Build(schedule, violation);
  if (!table.has_value()) return ToStatus(schedule, violation);
  return *std::move(table);
}

absl::StatusOr<ActionTable> ActionTable::BuildForRank(const Schedule& schedule, Rank rank) {
  Violation violation;
  if (!CheckPlacement(schedule, violation)) return ToStatus(schedule, violation);
  ActionTable table(schedule);
  if (!table.AddRank(schedule, rank, violation)) return ToStatus(schedule, violation);
  return table;
}

bool ActionTable::AddRank(const Schedule& schedule, Rank rank, Violation& violation) {
  const std::vector<StageId> stages = schedule.StagesOf(rank);
  const std::vector<Action>& list = schedule.list_of(rank);
  const size_t cells_per_stage = static_cast<size_t>(schedule.num_micro_batches);
  if (list.size() < stages.size() * cells_per_stage) {
    violation.rank = rank;
    violation.reason =
        absl::StrCat("it has ", list.size(), " actions, fewer than the ",
                     stages.size() * cells_per_stage, " forward passes of its ", stages.size(),
                     " stages for ", cells_per_stage, " micro-batches");
    return false;
  }
  Cell empty;
  empty.fill(kNowhere);
  for (const StageId stage : stages) {
    first_cell_[static_cast<size_t>(stage.value())] = places_.size();
    places_.resize(places_.size() + cells_per_stage, empty);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!AddAction(schedule, rank, static_cast<int32_t>(i), violation)) return false;
  }
  return true;
}

bool ActionTable::AddAction(const Schedule& schedule, Rank rank, int32_t position,
                            Violation& violation) {
  const std::vector<Action>& list = schedule.list_of(rank);
  const Action& action = list[static_cast<size_t>(position)];
  const auto fail = [&](std::string reason) {
    violation = ViolationAt(schedule, rank, position, std::move(reason));
    return false;
  };
  if (std::string why; IsMisnamed(schedule, rank, action, &why)) return fail(std::move(why));
  if (action.overlaps_next && !IsPair(list, static_cast<size_t>(position))) {
    return fail(
        "it overlaps the next action, but the two are neither an F and a B or BW of different "
        "micro-batches nor two transfers");
  }
  const auto record = [&](int32_t& place) {
    if (place != kNowhere) return fail("it has been performed before; remove one");
    place = position;
    return true;
  };
  if (IsCollective(action.op)) {
    const std::vector<Rank>& ranks = schedule.group(action.group).ranks;
    const auto member = std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return record(collectives_[CellOf(action.group, static_cast<size_t>(member))]
                              [CollectiveIndex(action.op)]);
  }
  const auto stage = static_cast<size_t>(action.stage.value());
  if (action.op == Op::kStep) return record(steps_[stage]);
  if (action.op == Op::kReduceGradients) return record(reduces_[stage]);
  if (!HasMicroBatch(action.op)) return true;  // may repeat
  Cell& cell = places_[CellOf(action.stage, action.micro_batch)];
  if (action.op != Op::kBackward) return record(cell[static_cast<size_t>(action.op)]);
  return record(cell[static_cast<size_t>(Op::kBackwardInput)]) &&
         record(cell[static_cast<size_t>(Op::kBackwardWeight)]);
}

bool IsMisnamed(const Schedule& schedule, Rank rank, const Action& action, std::string* why) {
  const auto wrong = [why](const auto&... pieces) {
    if (why != nullptr) *why = absl::StrCat(pieces...);
    return true;
  };
  if (IsCollective(action.op)) {
    if (action.stage.valid() || action.micro_batch.valid()) {
      return wrong("a ", OpName(action.op), " has neither stage nor micro-batch");
    }
    const int group = action.group.value();
    if (group < 0 || group >= static_cast<int>(schedule.groups.size())) {
      return wrong("the schedule has ", schedule.groups.size(), " groups");
    }
    const std::vector<Rank>& ranks = schedule.group(action.group).ranks;
    if (std::binary_search(ranks.begin(), ranks.end(), rank)) return false;
    return wrong("the rank is not in that group, \"", schedule.group(action.group).name, "\"");
  }
  if (action.group.valid()) return wrong("a ", OpName(action.op), " has no group");
  if (action.stage.value() < 0 || action.stage.value() >= schedule.num_stages()) {
    return wrong("the schedule has ", schedule.num_stages(), " stages");
  }
  if (schedule.rank_of(action.stage) != rank) {
    return wrong("that stage is on rank ", schedule.rank_of(action.stage).value());
  }
  if (!HasMicroBatch(action.op)) {
    return action.micro_batch.valid() && wrong("a ", OpName(action.op), " has no micro-batch");
  }
  if (action.micro_batch.value() < 0 || action.micro_batch.value() >= schedule.num_micro_batches) {
    return wrong("the schedule has ", schedule.num_micro_batches, " micro-batches");
  }
  if (!IsTransfer(action.op)) return false;
  const StageId neighbor = NeighborOf(action);
  if (neighbor.value() < 0 || neighbor.value() >= schedule.num_stages()) {
    return wrong("the stage has no neighbor on that side");
  }
  return schedule.rank_of(neighbor) == rank && wrong("the neighboring stage is on the same rank");
}

}  // namespace stagecoach::schedule
