#include "schedule/memory/stash.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "schedule/ir/action_table.h"

namespace stagecoach::schedule {
namespace {

// Tracks what one rank keeps as its list is performed. Counts micro-batches of stages that stash
// alike, and multiplies late, so that thirds add up to one.
class Ledger {
 public:
  Ledger(const Schedule& schedule, Rank rank, absl::Span<const StageStash> stash) {
    for (const StageId stage : schedule.StagesOf(rank)) {
      const StageStash& own = stash[static_cast<size_t>(stage.value())];
      const auto [entry, is_new] =
          index_of_.try_emplace(std::pair(own.forward, own.weight), kinds_.size());
      if (is_new) kinds_.push_back({.stash = own});
      kind_of_.emplace(stage, entry->second);
    }
  }

  void Perform(const Action& action) {
    Kind& kind = kinds_[kind_of_.at(action.stage)];
    switch (action.op) {
      case Op::kForward:
        ++kind.forward;
        break;
      case Op::kBackwardInput:
        --kind.forward;
        ++kind.weight;
        break;
      case Op::kBackwardWeight:
        --kind.weight;
        break;
      case Op::kBackward:
        --kind.forward;
        break;
      case Op::kRelease:
        --kind.forward;
        break;
      case Op::kFetch:
        ++kind.forward;
        break;
      default:
        break;
    }
  }

  double kept() const {
    double sum = 0.0;
    for (const Kind& kind : kinds_) {
      sum += kind.forward * kind.stash.forward + kind.weight * kind.stash.weight;
    }
    return sum;
  }

 private:
  struct Kind {
    StageStash stash;
    int forward = 0;  // micro-batches between F and B, without those that are on the host
    int weight = 0;   // between B and W
  };
  std::vector<Kind> kinds_;
  absl::flat_hash_map<std::pair<double, double>, size_t> index_of_;
  absl::flat_hash_map<StageId, size_t> kind_of_;
};

}  // namespace

std::vector<StageStash> UnitStash(const std::vector<Rank>& rank_of_stage, double weight_share) {
  absl::flat_hash_map<Rank, int> stages;
  for (const Rank rank : rank_of_stage) ++stages[rank];
  std::vector<StageStash> stash;
  for (const Rank rank : rank_of_stage) {
    const double share = 1.0 / stages[rank];
    stash.push_back({.forward = share, .weight = share * weight_share});
  }
  return stash;
}

std::vector<std::vector<double>> StashAfter(const Schedule& schedule,
                                            absl::Span<const StageStash> stash) {
  const bool keeps = schedule.HasBackward();
  std::vector<std::vector<double>> after;
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    Ledger ledger(schedule, rank, stash);
    std::vector<double>& own = after.emplace_back();
    for (const Action& action : schedule.list_of(rank)) {
      if (keeps && (IsCompute(action.op) || MovesStash(action.op))) ledger.Perform(action);
      own.push_back(ledger.kept());
    }
  }
  return after;
}

std::vector<double> PeakStash(const Schedule& schedule, absl::Span<const StageStash> stash) {
  std::vector<double> peak;
  const std::vector<std::vector<double>> after = StashAfter(schedule, stash);
  for (const std::vector<double>& own : after) {
    peak.push_back(std::accumulate(own.begin(), own.end(), 0.0,
                                   [](double a, double b) { return std::max(a, b); }));
  }
  return peak;
}

absl::Status CheckStash(const Schedule& schedule, absl::Span<const StageStash> stash,
                        absl::Span<const double> limit) {
  if (!schedule.HasBackward()) return absl::OkStatus();
  // Sums of shares are rounded; a limit of 1 is not exceeded by three thirds.
  constexpr double kRounding = 1.0 + 1e-9;
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    Ledger ledger(schedule, rank, stash);
    const std::vector<Action>& list = schedule.list_of(rank);
    const double most = limit[static_cast<size_t>(rank.value())];
    for (size_t i = 0; i < list.size(); ++i) {
      if (!IsCompute(list[i].op) && !MovesStash(list[i].op)) continue;
      ledger.Perform(list[i]);
      if (ledger.kept() <= most * kRounding) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          Where(schedule, rank, static_cast<int32_t>(i)), ": the rank then keeps ", ledger.kept(),
          ", its limit is ", most, "; perform its backward passes earlier or raise the limit"));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::schedule
