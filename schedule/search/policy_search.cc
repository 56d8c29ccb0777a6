#include "schedule/search/policy_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "schedule/search/list_scheduling.h"

namespace stagecoach::schedule {
namespace {

struct ScoredPolicy {
  Score score;
  ListPolicy policy;
};

// Number of policies of the grid from which descents start.
constexpr size_t kDescents = 4;

// Returns, for each stage, how many F and B of its rank fit into the time that a micro-batch takes
// from its F to the end of the pipeline and back to its B: the number that 1F1B has in flight if it
// is to wait for nothing.
std::vector<double> PassesPerRoundTrip(const OrderProblem& problem) {
  std::vector<double> busy(static_cast<size_t>(problem.ranks), 0.0);
  std::vector<double> trip(static_cast<size_t>(problem.stages), 0.0);
  double rest = 0.0;
  for (int s = problem.stages - 1; s >= 0; --s) {
    const auto f = static_cast<size_t>(problem.Pass(PassKind::kForward, s, 0));
    const auto b = static_cast<size_t>(problem.Pass(PassKind::kBackward, s, 0));
    rest += static_cast<double>(problem.duration[f] + problem.transfer[b]);
    trip[static_cast<size_t>(s)] = rest;
    rest += static_cast<double>(problem.duration[b] + problem.transfer[f]);
    busy[static_cast<size_t>(problem.rank_of[f])] +=
        static_cast<double>(problem.duration[f] + problem.duration[b]);
  }
  for (int s = 0; s < problem.stages; ++s) {
    const int rank = problem.rank_of_stage[static_cast<size_t>(s)];
    trip[static_cast<size_t>(s)] /= std::max(1.0, busy[static_cast<size_t>(rank)]);
  }
  return trip;
}

class PolicySearch {
 public:
  PolicySearch(const OrderProblem& problem, int64_t max_runs)
      : problem_(problem), scheduler_(problem), runs_left_(max_runs) {}

  void Search() {
    RunGrid();
    const size_t descents = std::min(kDescents, found_.size());
    for (size_t i = 0; i < descents; ++i) {
      const ScoredPolicy start = found_[i];
      Descend(start);
    }
    SortAndDropEqual();
  }

  std::vector<ScoredOrder> BestOrders(size_t max_orders,
                                      absl::FunctionRef<bool(const Order&)> is_acceptable) {
    std::vector<ScoredOrder> orders;
    for (const ScoredPolicy& found : found_) {
      if (orders.size() == max_orders) break;
      std::optional<Order> order = scheduler_.Run(found.policy);
      if (is_acceptable(*order)) orders.push_back({found.score, *std::move(order)});
    }
    return orders;
  }

 private:
  void RunGrid() {
    const std::vector<double> trip = PassesPerRoundTrip(problem_);
    ListPolicy policy;
    // The most promising first, in case the runs do not suffice for all; but before them, the one
    // that never fails.
    for (const double share :
         {0.0, 2.0, 1.3, 1.0, 1e9, 1.9, 1.6, 0.8, 0.9, 1.1, 1.2, 1.4, 1.8, 2.1}) {
      policy.in_flight.clear();
      for (const double passes : trip) {
        const double most = std::min<double>(std::ceil(share * passes), problem_.micro_batches);
        policy.in_flight.push_back(std::max(1, static_cast<int32_t>(most)));
      }
      for (const int32_t fused : FusedCounts()) {
        policy.fused = fused;
        RunWithEveryChoice(policy);
      }
    }
    SortAndDropEqual();
  }

  // Returns all; all except those whose W may fill the pauses at the end; none.
  std::vector<int32_t> FusedCounts() const {
    const std::vector<bool>& gains = problem_.gains_by_fusing;
    if (std::find(gains.begin(), gains.end(), true) == gains.end()) return {0};
    const int m = problem_.micro_batches;
    std::vector<int32_t> counts;
    for (const int count : {m, m - problem_.ranks, m - 2 * problem_.ranks}) {
      if (count > 0) counts.push_back(count);
    }
    counts.push_back(0);
    return counts;
  }

  void RunWithEveryChoice(ListPolicy policy) {
    const bool has_chunks = problem_.stages > problem_.ranks;
    for (const bool depth_first : {true, false}) {
      if (!depth_first && !has_chunks) continue;
      policy.depth_first = depth_first;
      for (const bool forward_first : {false, true}) {
        policy.forward_first = forward_first;
        for (const double gap : {0.0, 0.25, 0.5, 0.75, 1.0}) {
          policy.weight_gap = gap;
          if (--runs_left_ >= 0 && scheduler_.Run(policy).has_value()) {
            found_.push_back({scheduler_.score(), policy});
          }
        }
      }
    }
  }

  void Descend(ScoredPolicy best) {
    const int stages = problem_.stages;
    bool improved = true;
    while (improved && runs_left_ > 0) {
      improved = false;
      for (int s = 0; s < stages; ++s) {
        for (const int change : {1, -1}) {
          improved |= TryChange(best, s, s + 1, change);
          if (s > 0) improved |= TryChange(best, s, stages, change);
          if (s > 0) improved |= TryChange(best, 0, s + 1, change);
        }
      }
      if (best.policy.fused == 0) continue;
      for (const int change : {1, -1, problem_.ranks / 2, -problem_.ranks / 2}) {
        ListPolicy policy = best.policy;
        policy.fused = std::clamp(policy.fused + change, 0, problem_.micro_batches);
        improved |= TryPolicy(best, std::move(policy));
      }
    }
    found_.push_back(std::move(best));
  }

  bool TryChange(ScoredPolicy& best, int first, int last, int change) {
    ListPolicy policy = best.policy;
    for (int s = first; s < last; ++s) {
      int32_t& most = policy.in_flight[static_cast<size_t>(s)];
      most = std::clamp(most + change, 1, problem_.micro_batches);
    }
    return policy.in_flight != best.policy.in_flight && TryPolicy(best, std::move(policy));
  }

  bool TryPolicy(ScoredPolicy& best, ListPolicy policy) {
    if (--runs_left_ < 0) return false;
    if (!scheduler_.Run(policy).has_value() || scheduler_.score() >= best.score) return false;
    best = {scheduler_.score(), std::move(policy)};
    return true;
  }

  void SortAndDropEqual() {
    std::stable_sort(
        found_.begin(), found_.end(),
        [](const ScoredPolicy& a, const ScoredPolicy& b) { return a.score < b.score; });
    found_.erase(std::unique(found_.begin(), found_.end(),
                             [](const ScoredPolicy& a, const ScoredPolicy& b) {
                               return a.score == b.score;
                             }),
                 found_.end());
  }

  const OrderProblem& problem_;
  ListScheduler scheduler_;
  int64_t runs_left_;
  std::vector<ScoredPolicy> found_;
};

}  // namespace

std::vector<ScoredOrder> SearchPolicies(const OrderProblem& problem, int64_t max_runs,
                                        size_t max_orders,
                                        absl::FunctionRef<bool(const Order&)> is_acceptable) {
  PolicySearch search(problem, max_runs);
  search.Search();
  return search.BestOrders(max_orders, is_acceptable);
}

}  // namespace stagecoach::schedule
