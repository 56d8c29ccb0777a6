#include "schedule/transforms/lowering.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/ir/action_table.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/virtual_time.h"
#include "schedule/transforms/host_copies.h"

namespace stagecoach::schedule {
namespace {

// A receive to post before the compute action at position `slot` of its rank's list.
struct Arrival {
  Action receive;
  Rank from;
  int32_t slot;
  int64_t moment;  // when its message is sent
};

absl::Status CheckComputeOnly(const Schedule& schedule) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      if (IsCompute(list[i].op)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the schedule is already lowered: ", Where(schedule, rank, static_cast<int32_t>(i)),
          " is not a computation"));
    }
  }
  return absl::OkStatus();
}

// Returns where the operation that `position` belongs to starts: the two actions of an overlapped
// pair are one operation.
int32_t StartOfOperation(const std::vector<Action>& list, int32_t position) {
  const bool is_second = position > 0 && list[static_cast<size_t>(position) - 1].overlaps_next;
  return is_second ? position - 1 : position;
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Returns, for each rank and position, when its action ends if every F, B and W takes one unit of
// time; kNever if the order never gets that far.
std::vector<std::vector<int64_t>> EndsInUnits(const Schedule& compute) {
  constexpr StageTimes kUnits = {
      .forward_ns = 1, .backward_input_ns = 1, .backward_weight_ns = 1, .backward_ns = 2};
  Costs costs;
  costs.stages.assign(compute.rank_of_stage.size(), kUnits);
  VirtualTime time(compute, Sends::kBuffered);
  std::vector<std::vector<int64_t>> ends;
  // Validate explains an order in which ranks wait for each other.
  time.RunToEnds(costs, kNever, ends).IgnoreError();
  return ends;
}

// Returns before which operation of `list`, whose actions end at `ends`, to post the receive that
// is read at `read_at` and whose message is sent at `sent`.
int32_t SlotOf(const std::vector<Action>& list, const std::vector<int64_t>& ends, int32_t read_at,
               int64_t sent, Transfers transfers) {
  int32_t latest = StartOfOperation(list, read_at);
  if (transfers == Transfers::kSeparate && latest > 0) latest = StartOfOperation(list, latest - 1);
  if (sent == kNever) return latest;
  const auto first_not_ended = std::upper_bound(ends.begin(), ends.end(), sent);
  return std::min(latest, static_cast<int32_t>(first_not_ended - ends.begin()));
}

// Collects what each rank receives, grouped by sender, within a group in the sender's order: the
// one rule from which both ends of a pair derive the order of messages.
absl::StatusOr<std::vector<std::vector<Arrival>>> CollectArrivals(
    const Schedule& compute, const ActionTable& table,
    const std::vector<std::vector<int64_t>>& ends, Transfers transfers) {
  std::vector<std::vector<Arrival>> arrivals(compute.actions.size());
  for (Rank from(0); from.value() < compute.num_ranks(); ++from) {
    const std::vector<Action>& list = compute.list_of(from);
    for (size_t i = 0; i < list.size(); ++i) {
      const Action& action = list[i];
      const std::optional<Action> send = SendAfter(compute, action);
      if (!send.has_value()) continue;
      const Action receive = OtherEnd(*send);
      const Action reader{
          .op = ComputeOf(receive.op), .stage = receive.stage, .micro_batch = receive.micro_batch};
      const int32_t read_at = table.Find(reader);
      const Rank to = compute.rank_of(receive.stage);
      if (read_at == ActionTable::kNowhere) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", to.value(), " lacks ", ToString(reader), ", which reads the result of ",
            ToString(action), " on rank ", from.value(), "; add it"));
      }
      const auto at = static_cast<size_t>(to.value());
      const int64_t sent = ends[static_cast<size_t>(from.value())][i];
      arrivals[at].push_back(
          {receive, from, SlotOf(compute.list_of(to), ends[at], read_at, sent, transfers), sent});
    }
  }
  return arrivals;
}

// One of the transfers that stand between two operations.
struct TransferAt {
  Action action;
  int64_t moment;
};

// Puts the transfers of each moment together, receives first, and joins them.
void GroupByMoment(std::vector<TransferAt>& transfers) {
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const TransferAt& a, const TransferAt& b) { return a.moment < b.moment; });
  for (size_t i = 0; i + 1 < transfers.size(); ++i) {
    transfers[i].action.overlaps_next = transfers[i].moment == transfers[i + 1].moment;
  }
}

// Appends the actions of a rank to `lowered`. Its arrivals are in the order of their slots.
void LowerList(const Schedule& compute, const std::vector<Action>& list,
               const std::vector<int64_t>& ends, const std::vector<Arrival>& arrivals,
               const LoweringOptions& options, std::vector<Action>& lowered) {
  auto arrival = arrivals.begin();
  std::vector<TransferAt> between;                         // two operations
  std::vector<TransferAt> sends;                           // of the operation before
  lowered.reserve(2 * list.size() + arrivals.size() + 2);  // most operations send their result
  for (size_t i = 0; i <= list.size(); ++i) {
    const bool starts_operation =
        i == list.size() ||
        StartOfOperation(list, static_cast<int32_t>(i)) == static_cast<int32_t>(i);
    if (starts_operation) {
      between.clear();
      for (; arrival != arrivals.end() && arrival->slot == static_cast<int32_t>(i); ++arrival) {
        between.push_back({arrival->receive, arrival->moment});
      }
      between.insert(between.end(), sends.begin(), sends.end());
      sends.clear();
      if (options.transfers == Transfers::kGrouped) GroupByMoment(between);
      for (const TransferAt& transfer : between) lowered.push_back(transfer.action);
    }
    if (i == list.size()) break;
    lowered.push_back(list[i]);
    if (const std::optional<Action> send = SendAfter(compute, list[i])) {
      sends.push_back({*send, ends[i]});
    }
  }
}

bool HasOp(const Schedule& schedule, Op op) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [op](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [op](const Action& action) { return action.op == op; });
  });
}

// Returns the group of all ranks, which is added if there is none.
GroupId GroupOfAll(Schedule& schedule) {
  CollectiveGroup all = {.name = "all"};
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) all.ranks.push_back(rank);
  const auto found =
      std::find_if(schedule.groups.begin(), schedule.groups.end(),
                   [&](const CollectiveGroup& group) { return group.ranks == all.ranks; });
  const auto id = static_cast<int32_t>(found - schedule.groups.begin());
  if (found == schedule.groups.end()) schedule.groups.push_back(std::move(all));
  return GroupId(id);
}

// Pulls every arrival forward to the earliest slot of those behind it in its group, then orders all
// by slot. The sort is stable, which keeps each group in the sender's order.
void FixSlots(std::vector<Arrival>& arrivals) {
  for (size_t i = arrivals.size(); i-- > 1;) {
    Arrival& earlier = arrivals[i - 1];
    if (earlier.from == arrivals[i].from) earlier.slot = std::min(earlier.slot, arrivals[i].slot);
  }
  const auto is_earlier = [](const Arrival& a, const Arrival& b) { return a.slot < b.slot; };
  if (std::is_sorted(arrivals.begin(), arrivals.end(), is_earlier)) return;
  std::stable_sort(arrivals.begin(), arrivals.end(), is_earlier);
}

// Returns true if the action is the last that adds to its stage's gradients.
bool CompletesGradients(const Schedule& schedule, const Action& action) {
  return (action.op == Op::kBackward || action.op == Op::kBackwardWeight) &&
         action.micro_batch.value() + 1 == schedule.num_micro_batches;
}

void AddCollectives(const LoweringOptions& options, Schedule& lowered) {
  // A rank without stages has no step.
  const auto first = [](std::vector<Action>& list, std::initializer_list<Op> ops) {
    return std::find_if(list.begin(), list.end(), [&](const Action& action) {
      return std::find(ops.begin(), ops.end(), action.op) != ops.end();
    });
  };
  if (options.sum_ties && lowered.HasBackward() && !HasOp(lowered, Op::kSumTies)) {
    const Action ties = Collective(Op::kSumTies, GroupOfAll(lowered));
    for (std::vector<Action>& list : lowered.actions) {
      list.insert(first(list, {Op::kExchangeNorms, Op::kShareResults, Op::kStep}), ties);
    }
  }
  if (options.exchange_norms && lowered.HasBackward() && !HasOp(lowered, Op::kExchangeNorms)) {
    const Action norm = Collective(Op::kExchangeNorms, GroupOfAll(lowered));
    for (std::vector<Action>& list : lowered.actions) {
      list.insert(first(list, {Op::kStep, Op::kShareResults}), norm);
    }
  }
  if (options.results != ResultsPlace::kNowhere && !HasOp(lowered, Op::kShareResults)) {
    const Action results = Collective(Op::kShareResults, GroupOfAll(lowered));
    const bool is_last = options.results == ResultsPlace::kEnd;
    for (std::vector<Action>& list : lowered.actions) {
      list.insert(is_last ? list.end() : first(list, {Op::kStep}), results);
    }
  }
}

}  // namespace

// Adds each REDUCE behind the operation that completes the stage's gradients and the transfers that
// follow it.
void AddReductions(Schedule& lowered) {
  if (HasOp(lowered, Op::kReduceGradients)) return;
  for (std::vector<Action>& list : lowered.actions) {
    std::vector<Action> with_reductions, reductions;
    const auto add_reductions = [&] {
      with_reductions.insert(with_reductions.end(), reductions.begin(), reductions.end());
      reductions.clear();
    };
    for (size_t i = 0; i < list.size(); ++i) {
      const auto at = static_cast<int32_t>(i);
      if (!IsTransfer(list[i].op) && StartOfOperation(list, at) == at) add_reductions();
      with_reductions.push_back(list[i]);
      if (!CompletesGradients(lowered, list[i])) continue;
      reductions.push_back({.op = Op::kReduceGradients, .stage = list[i].stage});
    }
    add_reductions();
    list = std::move(with_reductions);
  }
}

void FitToRun(const LoweringOptions& options, Schedule& lowered) {
  for (std::vector<Action>& list : lowered.actions) {
    std::erase_if(list, [&](const Action& action) {
      return action.op == Op::kUnshard || action.op == Op::kReshard ||
             (action.op == Op::kReduceGradients && !options.reduce_gradients);
    });
  }
  if (options.reduce_gradients) AddReductions(lowered);
  AddCollectives(options, lowered);
  AddHostCopies(options.offload, lowered);
}

void AppendToEachStage(Op op, Schedule& schedule) {
  for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    const auto rank = static_cast<size_t>(schedule.rank_of(stage).value());
    schedule.actions[rank].push_back({.op = op, .stage = stage});
  }
}

absl::StatusOr<Schedule> Lower(const Schedule& compute, const LoweringOptions& options) {
  RETURN_IF_ERROR(CheckComputeOnly(compute));
  ASSIGN_OR_RETURN(const ActionTable table, ActionTable::Build(compute));
  const std::vector<std::vector<int64_t>> ends = EndsInUnits(compute);
  ASSIGN_OR_RETURN(std::vector<std::vector<Arrival>> arrivals,
                   CollectArrivals(compute, table, ends, options.transfers));

  Schedule lowered;
  lowered.name = compute.name;
  lowered.num_micro_batches = compute.num_micro_batches;
  lowered.rank_of_stage = compute.rank_of_stage;
  lowered.actions.resize(compute.actions.size());
  const bool trains = compute.HasBackward();
  for (size_t r = 0; r < compute.actions.size(); ++r) {
    FixSlots(arrivals[r]);
    LowerList(compute, compute.actions[r], ends[r], arrivals[r], options, lowered.actions[r]);
  }
  if (trains) AppendToEachStage(Op::kStep, lowered);
  FitToRun(options, lowered);
  return lowered;
}

}  // namespace stagecoach::schedule
