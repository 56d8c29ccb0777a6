#include "schedule/ir/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::schedule {

int64_t Schedule::num_actions() const {
  int64_t sum = 0;
  for (const std::vector<Action>& list : actions) sum += static_cast<int64_t>(list.size());
  return sum;
}

std::vector<StageId> Schedule::StagesOf(Rank rank) const {
  std::vector<StageId> stages;
  for (StageId stage(0); stage.value() < num_stages(); ++stage) {
    if (rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

bool Schedule::HasBackward() const {
  return std::any_of(actions.begin(), actions.end(), [](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& action) { return IsBackward(action.op); });
  });
}

bool Schedule::MovesStashes() const {
  return std::any_of(actions.begin(), actions.end(), [](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& action) { return MovesStash(action.op); });
  });
}

bool Schedule::IsLowered() const {
  return std::any_of(actions.begin(), actions.end(), [](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& action) { return !IsCompute(action.op); });
  });
}

bool Schedule::SplitsBackward(StageId stage) const {
  const std::vector<Action>& list = list_of(rank_of(stage));
  return std::any_of(list.begin(), list.end(), [stage](const Action& action) {
    return action.op == Op::kBackwardInput && action.stage == stage;
  });
}

std::optional<Action> SendAfter(const Schedule& schedule, const Action& compute) {
  const StageId stage = compute.stage;
  switch (compute.op) {
    case Op::kForward:
      if (!schedule.sends_to_next(stage)) return std::nullopt;
      return Action{.op = Op::kSendActivation, .stage = stage, .micro_batch = compute.micro_batch};
    case Op::kBackwardInput:
    case Op::kBackward:
      if (!schedule.receives_from_previous(stage)) return std::nullopt;
      return Action{.op = Op::kSendGradient, .stage = stage, .micro_batch = compute.micro_batch};
    default:
      return std::nullopt;
  }
}

std::optional<Action> ReceiveBefore(const Schedule& schedule, const Action& compute) {
  const StageId stage = compute.stage;
  switch (compute.op) {
    case Op::kForward:
      if (!schedule.receives_from_previous(stage)) return std::nullopt;
      return Action{
          .op = Op::kReceiveActivation, .stage = stage, .micro_batch = compute.micro_batch};
    case Op::kBackwardInput:
    case Op::kBackward:
      if (!schedule.sends_to_next(stage)) return std::nullopt;
      return Action{.op = Op::kReceiveGradient, .stage = stage, .micro_batch = compute.micro_batch};
    default:
      return std::nullopt;
  }
}

size_t EndOfGroup(const std::vector<Action>& list, size_t position) {
  while (list[position].overlaps_next) ++position;
  return position + 1;
}

Rank PeerOf(const Schedule& schedule, const Action& action) {
  const StageId neighbor = NeighborOf(action);
  STAGECOACH_CHECK(neighbor.value() >= 0 && neighbor.value() < schedule.num_stages(),
                   absl::StrCat(ToString(action), " has no peer"));
  return schedule.rank_of(neighbor);
}

}  // namespace stagecoach::schedule
