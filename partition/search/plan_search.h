#ifndef STAGECOACH_PARTITION_SEARCH_PLAN_SEARCH_H_
#define STAGECOACH_PARTITION_SEARCH_PLAN_SEARCH_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/candidates.h"
#include "partition/search/found_plans.h"
#include "partition/search/planner.h"
#include "partition/search/rounds.h"
#include "partition/search/search_budget.h"

namespace stagecoach::partition {

// Returns the InvalidArgument with which FindPlan refuses a request that no search could answer.
absl::Status CheckRequest(const PlannerRequest& request);

// The search for the best plan of one profile. It can be continued where it ended.
class PlanSearch {
 public:
  // InvalidArgument: those of FindPlan.
  static absl::StatusOr<std::unique_ptr<PlanSearch>> Create(PlannerRequest request,
                                                            SearchLimits limits);

  // Errors: those of FindPlan.
  absl::StatusOr<PlanEvaluation> Run();
  // Runs again within other limits: considers what the first run had no time for, and improves what
  // it found.
  absl::StatusOr<PlanEvaluation> Continue(SearchLimits limits);

 private:
  struct Task {
    Task(PlannerRequest asked, SearchLimits asked_limits)
        : request(std::move(asked)), limits(std::move(asked_limits)), budget(limits) {}

    PlannerRequest request;
    std::optional<Profile> given;  // before its layers were replaced by such as always repeat F
    SearchLimits limits;
    SearchBudget budget;
  };

  PlanSearch(std::unique_ptr<Task> task, CandidateSpace space)
      : task_(std::move(task)),
        space_(std::move(space)),
        plans_(request_, space_, task_->limits, budget_),
        rounds_search_(request_, space_, plans_) {}

  absl::StatusOr<PlanEvaluation> Search();
  bool improves() const { return task_->limits.improves; }
  bool TakesAnyOrder() const;
  void EvaluateStarts();
  absl::Status ConsiderStarts();
  absl::Status ConsiderQuickly();
  std::vector<size_t> Order() const;
  absl::Status ConsiderAll();
  bool IsLeftForRounds(const Candidate& candidate) const;
  bool IsHopeless(double lower_bound_ns) const;
  absl::Status Consider(Candidate candidate);
  absl::Status RefineBest();
  absl::Status ConsiderOrders();
  absl::Status Improve();
  absl::StatusOr<PlanEvaluation> EvaluationFor(const FoundPlan& plan, const CutEvaluator& pipeline);
  absl::StatusOr<PlanEvaluation> DividedIfFaster(const FoundPlan& found, PlanEvaluation evaluation);
  absl::StatusOr<PlanEvaluation> WithAllRecomputed(PlanEvaluation found) const;
  absl::Status NothingYet() const;
  absl::StatusOr<PlanEvaluation> Finish();
  absl::StatusOr<PlanEvaluation> FinishWithPlan();
  PlanEvaluation OrStart(PlanEvaluation found) const;

  const std::unique_ptr<Task> task_;
  const PlannerRequest& request_ = task_->request;
  SearchBudget& budget_ = task_->budget;
  CandidateSpace space_;
  FoundPlans plans_;
  Rounds rounds_search_;
  std::optional<PlanEvaluation> best_start_;
  std::vector<absl::Status> starts_;  // PlanEvaluation::starts
  std::set<size_t> considered_;       // candidates
  std::set<size_t> settled_;          // those of them that need not be considered again
  bool has_orders_ = false;           // they were searched to the end
  int orders_ = 0;                    // of our own, and cuts of which all were considered
  double order_bound_ns_ = 0;         // of all plans, as far as all orders were searched
  PlanEvaluation::Rounds rounds_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PLAN_SEARCH_H_
