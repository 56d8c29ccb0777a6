#ifndef STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_
#define STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/search/best_cut.h"
#include "partition/search/candidates.h"
#include "partition/search/planner.h"
#include "partition/search/search_budget.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// A candidate and the best cut that was found for it.
struct FoundPlan {
  Candidate candidate;
  schedule::Schedule schedule;
  BestCut found;
  int64_t in_flight = 0;  // the sum over the ranks
  // The pipeline for which it was found; kept for the best plan alone, since it may take GBs.
  std::shared_ptr<const CutEvaluator> pipeline = nullptr;

  bool IsBetterThan(const FoundPlan& other) const;
  // Returns true if everything except the cut, and the order of the layers in it, is the same.
  bool IsOfChoice(const FoundPlan& other) const;
};

// The planner's knowledge after each of its steps: the plans found so far, the bound that no plan
// can beat, and why others were left out.
class FoundPlans {
 public:
  // All must outlive it.
  FoundPlans(const PlannerRequest& request, CandidateSpace& space, const SearchLimits& limits,
             SearchBudget& budget)
      : request_(request), space_(space), limits_(limits), budget_(budget) {}

  SearchBudget& budget() { return budget_; }

  // Best first.
  const std::vector<FoundPlan>& plans() const { return plans_; }
  bool empty() const { return plans_.empty(); }
  const FoundPlan& best() const { return plans_.front(); }

  // Returns the options of the short search for cuts; the best are refined afterwards.
  BestCutOptions CutOptions() const;
  // Cuts a candidate under a schedule of its shape, and keeps the best cut if one fits. If the
  // budget leaves open whether there is a better one, the bound of the candidate is recorded. With
  // a start it has been considered before: then only what is better than before is kept.
  absl::Status Consider(Candidate candidate, schedule::Schedule schedule,
                        const BestCutOptions& options);
  // Considers a plan's candidate again, with the long search.
  absl::Status Refine(FoundPlan plan);
  void Refuse(const absl::Status& status) { refusal_.Update(status); }
  // Records that there may be an undiscovered plan this fast.
  void NoteBound(double lower_bound_ns);
  void CountSimulated(int plans) { simulated_ += plans; }

  // Returns true if a plan with that lower bound cannot be better than the best.
  bool IsHopeless(double lower_bound_ns) const {
    return !empty() && lower_bound_ns >= best().found.objective_ns;
  }
  bool IsFar(double objective_ns, double factor) const {
    return !empty() && objective_ns > factor * best().found.objective_ns;
  }

  double bound_ns() const { return bound_ns_; }
  int simulated() const { return simulated_; }
  bool has_misfit() const { return has_misfit_; }
  const absl::Status& refusal() const { return refusal_; }  // the first one

 private:
  // Returns true if a known plan of the same choice is at least as fast.
  bool IsKnown(const FoundPlan& plan) const;
  bool IsProvenMisfit(const CutEvaluator& pipeline) const;

  const PlannerRequest& request_;
  CandidateSpace& space_;
  const SearchLimits& limits_;
  SearchBudget& budget_;
  std::vector<FoundPlan> plans_;
  double bound_ns_ = std::numeric_limits<double>::infinity();
  absl::Status refusal_;
  bool has_misfit_ = false;
  int simulated_ = 0;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_
