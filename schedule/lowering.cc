#include "schedule/lowering.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/action_table.h"

namespace stagecoach::schedule {
namespace {

// A receive to be posted before the compute action at position `slot` of its rank's list.
struct Arrival {
  Action receive;
  Rank from;
  int32_t slot;
};

absl::Status CheckComputeOnly(const Schedule& schedule) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      if (IsCompute(list[i].op)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the schedule is lowered already: ", Where(schedule, rank, static_cast<int32_t>(i)),
          " is not a computation"));
    }
  }
  return absl::OkStatus();
}

std::optional<Action> SendAfter(const Schedule& schedule, const Action& action) {
  const StageId stage = action.stage;
  switch (action.op) {
    case Op::kForward:
      if (!schedule.sends_to_next(stage)) return std::nullopt;
      return Action{Op::kSendActivation, stage, action.micro_batch};
    case Op::kBackwardInput:
    case Op::kBackward:
      if (!schedule.receives_from_previous(stage)) return std::nullopt;
      return Action{Op::kSendGradient, stage, action.micro_batch};
    default:
      return std::nullopt;
  }
}

// For each rank what it receives, grouped by sender, within a group in the sender's order: the one
// rule from which both ends of a pair derive the order of messages.
absl::StatusOr<std::vector<std::vector<Arrival>>> CollectArrivals(const Schedule& compute,
                                                                  const ActionTable& table,
                                                                  int receive_lead) {
  std::vector<std::vector<Arrival>> arrivals(compute.actions.size());
  for (Rank from(0); from.value() < compute.num_ranks(); ++from) {
    for (const Action& action : compute.list_of(from)) {
      const std::optional<Action> send = SendAfter(compute, action);
      if (!send.has_value()) continue;
      const Action receive = OtherEnd(*send);
      const Action reader{ComputeOf(receive.op), receive.stage, receive.micro_batch};
      const int32_t read_at = table.Find(reader);
      const Rank to = compute.rank_of(receive.stage);
      if (read_at == ActionTable::kNowhere) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", to.value(), " lacks ", ToString(reader), ", which reads the result of ",
            ToString(action), " on rank ", from.value(), "; add it"));
      }
      arrivals[static_cast<size_t>(to.value())].push_back(
          {receive, from, std::max(0, read_at - receive_lead)});
    }
  }
  return arrivals;
}

// Pulls every arrival forward to the earliest slot of those behind it in its group, then orders all
// by slot. The sort is stable, which keeps each group in the sender's order.
void FixSlots(std::vector<Arrival>& arrivals) {
  for (size_t i = arrivals.size(); i-- > 1;) {
    Arrival& earlier = arrivals[i - 1];
    if (earlier.from == arrivals[i].from) earlier.slot = std::min(earlier.slot, arrivals[i].slot);
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.slot < b.slot; });
}

}  // namespace

absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options) {
  if (options.receive_lead < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive_lead must be at least 0, got ", options.receive_lead));
  }
  RETURN_IF_ERROR(CheckComputeOnly(compute));
  ASSIGN_OR_RETURN(const ActionTable table, ActionTable::Build(compute));
  ASSIGN_OR_RETURN(std::vector<std::vector<Arrival>> arrivals,
                   CollectArrivals(compute, table, options.receive_lead));

  Schedule lowered;
  lowered.name = compute.name;
  lowered.num_micro_batches = compute.num_micro_batches;
  lowered.rank_of_stage = compute.rank_of_stage;
  lowered.actions.resize(compute.actions.size());
  const bool trains = compute.HasBackward();
  for (size_t r = 0; r < compute.actions.size(); ++r) {
    FixSlots(arrivals[r]);
    std::vector<Action>& list = lowered.actions[r];
    auto arrival = arrivals[r].begin();
    for (size_t i = 0; i < compute.actions[r].size(); ++i) {
      for (; arrival != arrivals[r].end() && arrival->slot == static_cast<int32_t>(i); ++arrival) {
        list.push_back(arrival->receive);
      }
      const Action& action = compute.actions[r][i];
      list.push_back(action);
      if (const std::optional<Action> send = SendAfter(compute, action)) list.push_back(*send);
    }
    if (!trains) continue;
    for (const StageId stage : compute.StagesOf(Rank(static_cast<int32_t>(r)))) {
      list.push_back({Op::kStep, stage, MicroBatch()});
    }
  }
  return lowered;
}

}  // namespace stagecoach::schedule
