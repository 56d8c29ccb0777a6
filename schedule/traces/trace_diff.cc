#include "schedule/traces/trace_diff.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "schedule/traces/check_trace.h"

namespace stagecoach::schedule {
namespace {

constexpr int64_t kPartedPercent = 5;

bool Occupies(Op op) { return !RunsBeside(op); }
bool WaitsForReductions(Op op) { return op == Op::kStep || TakesGradients(op); }

Cause WorkCause(const std::vector<TimedAction>& list, size_t i) {
  const bool overlapped =
      list[i].action.overlaps_next || (i > 0 && list[i - 1].action.overlaps_next);
  if (overlapped) return Cause::kOverlapped;
  switch (list[i].action.op) {
    case Op::kForward:
      return Cause::kForward;
    case Op::kBackwardInput:
      return Cause::kBackwardInput;
    case Op::kBackwardWeight:
      return Cause::kBackwardWeight;
    case Op::kBackward:
      return Cause::kBackward;
    default:
      return Cause::kOfStage;
  }
}

Cause WaitCause(Op op) {
  if (op == Op::kForward) return Cause::kActivations;
  if (op == Op::kBackwardInput || op == Op::kBackward) return Cause::kGradients;
  return IsSend(op) ? Cause::kSends : Cause::kExecutor;
}

// Divides a step among the actions of a rank and their causes. Index: position; one more for the
// tail. Time advances from mark to mark, and the interval between two of them is attributed to one
// cause, so that nothing is counted twice however the actions' times overlap.
std::vector<TimeSplit> SplitByAction(const std::vector<TimedAction>& list, int64_t step_ns) {
  std::vector<TimeSplit> splits(list.size() + 1);
  int64_t now_ns = 0;
  const auto advance = [&splits, &now_ns](size_t position, Cause cause, int64_t until_ns) {
    if (until_ns <= now_ns) return;
    splits[position][cause] += until_ns - now_ns;
    now_ns = until_ns;
  };
  int64_t reduced_ns = 0;  // when the last REDUCE so far was done
  size_t last_send = 0;
  int64_t last_sent_ns = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const TimedAction& timed = list[i];
    advance(i, Cause::kExecutor, timed.reached_ns);
    if (WaitsForReductions(timed.action.op)) {
      advance(i, Cause::kOfStage, std::min(timed.start_ns, reduced_ns));
    }
    advance(i, WaitCause(timed.action.op), timed.start_ns);
    if (timed.action.op == Op::kReduceGradients) reduced_ns = timed.end_ns;
    if (Occupies(timed.action.op)) advance(i, WorkCause(list, i), timed.end_ns);
    if (!IsSend(timed.action.op)) continue;
    if (i + 1 < list.size()) {
      advance(i, Cause::kSends, std::min(timed.end_ns, list[i + 1].reached_ns));
    }
    if (timed.end_ns >= last_sent_ns) {
      last_send = i;
      last_sent_ns = timed.end_ns;
    }
  }
  advance(last_send, Cause::kSends, last_sent_ns);
  advance(list.size(), Cause::kTail, step_ns);
  return splits;
}

TimeSplit Sum(const std::vector<TimeSplit>& splits) {
  TimeSplit sum;
  for (const TimeSplit& split : splits) {
    for (int c = 0; c < kNumCauses; ++c) sum[static_cast<Cause>(c)] += split[static_cast<Cause>(c)];
  }
  return sum;
}

// Rounds the running total rather than each cause, so that the result sums to the exact mean of the
// sums, which are all equal.
TimeSplit Mean(const std::vector<TimeSplit>& splits) {
  TimeSplit mean;
  if (splits.empty()) return mean;
  const TimeSplit sum = Sum(splits);
  const auto count = static_cast<int64_t>(splits.size());
  int64_t total_ns = 0;
  for (int c = 0; c < kNumCauses; ++c) {
    const int64_t before_ns = total_ns / count;
    total_ns += sum[static_cast<Cause>(c)];
    mean[static_cast<Cause>(c)] = total_ns / count - before_ns;
  }
  return mean;
}

absl::Status CheckSameSchedule(const Trace& simulated, const Trace& measured) {
  RETURN_IF_ERROR(base::Annotate(CheckTrace(simulated), "simulated"));
  RETURN_IF_ERROR(base::Annotate(CheckTrace(measured), "measured"));
  if (simulated.rank_of_stage != measured.rank_of_stage ||
      simulated.num_ranks() != measured.num_ranks()) {
    return base::DataError(
        absl::StrCat("the traces are of different placements: ", simulated.num_stages(),
                     " stages on ", simulated.num_ranks(), " ranks simulated, ",
                     measured.num_stages(), " on ", measured.num_ranks(), " measured"));
  }
  if (simulated.num_micro_batches != measured.num_micro_batches) {
    return base::DataError(
        absl::StrCat("the traces are of different batches: ", simulated.num_micro_batches,
                     " micro-batches simulated, ", measured.num_micro_batches, " measured"));
  }
  const auto name = [](const std::vector<TimedAction>& list, size_t i) {
    return i < list.size() ? ToString(list[i].action) : "the end of the list";
  };
  for (Rank rank(0); rank.value() < simulated.num_ranks(); ++rank) {
    const std::vector<TimedAction>& a = simulated.list_of(rank);
    const std::vector<TimedAction>& b = measured.list_of(rank);
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      if (i < a.size() && i < b.size() && a[i].action == b[i].action) continue;
      return base::DataError(absl::StrCat("the traces are of different schedules: rank ",
                                          rank.value(), ", position ", i, ": ", name(a, i),
                                          " simulated, ", name(b, i), " measured"));
    }
  }
  return absl::OkStatus();
}

void AddContributions(const Trace& simulated, const Trace& measured, Rank rank,
                      std::vector<DelayCause>& contributions) {
  const std::vector<TimedAction>& list = measured.list_of(rank);
  auto a = SplitByAction(simulated.list_of(rank), simulated.step_ns);
  auto b = SplitByAction(list, measured.step_ns);
  // A device that performs an overlapped pair one after the other is not to blame for each half.
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    if (!list[i].action.overlaps_next) continue;
    for (auto* const splits : {&a, &b}) {
      int64_t& second_ns = (*splits)[i + 1][Cause::kOverlapped];
      (*splits)[i][Cause::kOverlapped] += std::exchange(second_ns, 0);
    }
  }
  for (size_t i = 0; i < list.size(); ++i) {
    for (int c = 0; c < kNumCauses; ++c) {
      const Cause cause = static_cast<Cause>(c);
      if (a[i][cause] == b[i][cause]) continue;
      contributions.push_back(
          {rank, i, list[i].action, cause, a[i][cause], b[i][cause], list[i].start_ns});
    }
  }
}

void KeepMost(size_t num_most, std::vector<DelayCause>& contributions) {
  std::stable_sort(contributions.begin(), contributions.end(),
                   [](const DelayCause& a, const DelayCause& b) {
                     const int64_t a_ns = std::abs(a.difference_ns());
                     const int64_t b_ns = std::abs(b.difference_ns());
                     return std::tie(b_ns, a.started_ns) < std::tie(a_ns, b.started_ns);
                   });
  if (contributions.size() > num_most) contributions.resize(num_most);
}

std::optional<Divergence> FirstDeparture(const Trace& simulated, const Trace& measured) {
  std::optional<Divergence> first;
  for (Rank rank(0); rank.value() < simulated.num_ranks(); ++rank) {
    const std::vector<TimedAction>& list = simulated.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t start_ns = list[i].start_ns;
      const int64_t measured_ns = measured.list_of(rank)[i].start_ns;
      if (100 * std::abs(measured_ns - start_ns) <= kPartedPercent * simulated.step_ns) continue;
      if (!first.has_value() || start_ns < first->simulated_ns) {
        first = Divergence{rank, i, list[i].action, start_ns, measured_ns};
      }
      break;
    }
  }
  return first;
}

}  // namespace

const char* CauseName(Cause cause) {
  constexpr const char* kNames[kNumCauses] = {
      "F", "B", "W", "BW", "F+B", "step", "activations", "gradients", "sends", "executor", "tail"};
  return kNames[static_cast<size_t>(cause)];
}

int64_t TimeSplit::compute_ns() const {
  return std::accumulate(ns_.begin(), ns_.begin() + static_cast<int>(Cause::kActivations),
                         int64_t{0});
}

int64_t TimeSplit::sum_ns() const { return std::accumulate(ns_.begin(), ns_.end(), int64_t{0}); }

std::vector<TimeSplit> SplitByCause(const Trace& trace) {
  std::vector<TimeSplit> splits;
  for (const std::vector<TimedAction>& list : trace.actions) {
    splits.push_back(Sum(SplitByAction(list, trace.step_ns)));
  }
  return splits;
}

absl::StatusOr<TraceDiff> DiffTraces(const Trace& simulated, const Trace& measured,
                                     size_t num_most) {
  RETURN_IF_ERROR(CheckSameSchedule(simulated, measured));
  TraceDiff diff;
  diff.simulated_step_ns = simulated.step_ns;
  diff.measured_step_ns = measured.step_ns;
  const std::vector<TimeSplit> before = SplitByCause(simulated);
  diff.ranks = SplitByCause(measured);
  diff.simulated = Mean(before);
  diff.measured = Mean(diff.ranks);
  for (size_t r = 0; r < before.size(); ++r) {
    for (int c = 0; c < kNumCauses; ++c) {
      diff.ranks[r][static_cast<Cause>(c)] -= before[r][static_cast<Cause>(c)];
    }
    AddContributions(simulated, measured, Rank(static_cast<int32_t>(r)), diff.most);
  }
  KeepMost(num_most, diff.most);
  diff.parted = FirstDeparture(simulated, measured);
  return diff;
}

}  // namespace stagecoach::schedule
