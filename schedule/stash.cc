#include "schedule/stash.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "schedule/action_table.h"

namespace stagecoach::schedule {
namespace {

// What one rank keeps as its list is performed. Counts micro-batches and multiplies late, so that
// thirds add up to one.
class Ledger {
 public:
  Ledger(const Schedule& schedule, Rank rank, absl::Span<const StageStash> stash)
      : stages_(schedule.StagesOf(rank)), stash_(stash), counts_(schedule.rank_of_stage.size()) {}

  void Perform(const Action& action) {
    Count& count = counts_[static_cast<size_t>(action.stage.value())];
    switch (action.op) {
      case Op::kForward:
        ++count.forward;
        break;
      case Op::kBackwardInput:
        --count.forward;
        ++count.weight;
        break;
      case Op::kBackwardWeight:
        --count.weight;
        break;
      case Op::kBackward:
        --count.forward;
        break;
      default:
        break;
    }
  }

  double kept() const {
    double sum = 0.0;
    for (const StageId stage : stages_) {
      const auto i = static_cast<size_t>(stage.value());
      sum += counts_[i].forward * stash_[i].forward + counts_[i].weight * stash_[i].weight;
    }
    return sum;
  }

 private:
  struct Count {
    int forward = 0;
    int weight = 0;
  };
  const std::vector<StageId> stages_;
  const absl::Span<const StageStash> stash_;
  std::vector<Count> counts_;
};

}  // namespace

std::vector<StageStash> UnitStash(const Schedule& schedule, double weight_share) {
  std::vector<int> stages(schedule.actions.size(), 0);
  for (const Rank rank : schedule.rank_of_stage) ++stages[static_cast<size_t>(rank.value())];
  std::vector<StageStash> stash;
  for (const Rank rank : schedule.rank_of_stage) {
    const double share = 1.0 / stages[static_cast<size_t>(rank.value())];
    stash.push_back({.forward = share, .weight = share * weight_share});
  }
  return stash;
}

std::vector<double> PeakStash(const Schedule& schedule, absl::Span<const StageStash> stash) {
  std::vector<double> peak(schedule.actions.size(), 0.0);
  if (!schedule.HasBackward()) return peak;
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    Ledger ledger(schedule, rank, stash);
    for (const Action& action : schedule.list_of(rank)) {
      if (!IsCompute(action.op)) continue;
      ledger.Perform(action);
      double& most = peak[static_cast<size_t>(rank.value())];
      most = std::max(most, ledger.kept());
    }
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
      if (!IsCompute(list[i].op)) continue;
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
