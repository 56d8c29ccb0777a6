#ifndef STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_
#define STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "partition/search/best_cut.h"
#include "partition/search/candidates.h"
#include "partition/search/cutoff.h"
#include "partition/search/pipeline.h"
#include "partition/search/planner.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// A candidate and the best that was found for it.
struct FoundPlan {
  Candidate candidate;
  schedule::Schedule schedule;
  BestCut found;
  int64_t in_flight = 0;  // the sum over the ranks
  // For which it was found; of the best plan alone, since it may take GBs.
  std::shared_ptr<const Pipeline> pipeline = nullptr;

  bool IsBetterThan(const FoundPlan& other) const;
};

// What the planner knows after each of its steps: the plans found so far, what no plan can beat,
// and why others were left out.
class FoundPlans {
 public:
  // All must outlive it.
  FoundPlans(const PlannerRequest& request, CandidateSpace& space, const SearchLimits& limits,
             Cutoff& cutoff)
      : request_(request), space_(space), limits_(limits), cutoff_(cutoff) {}

  Cutoff& cutoff() { return cutoff_; }

  // The best first.
  const std::vector<FoundPlan>& plans() const { return plans_; }
  bool empty() const { return plans_.empty(); }
  const FoundPlan& best() const { return plans_.front(); }

  // The short search for cuts; the best are refined afterwards.
  BestCutOptions CutOptions() const;
  // Cuts a candidate under a schedule of its shape, and keeps the best cut if one fits. Where the
  // cutoff leaves it open whether there is a better one, the bound of the candidate is noted.
  absl::Status Consider(Candidate candidate, schedule::Schedule schedule,
                        const BestCutOptions& options);
  // Considers a plan's candidate again, with the long search.
  absl::Status Refine(FoundPlan plan);
  void Refuse(const absl::Status& status) { refusal_.Update(status); }
  // There may be a plan this fast that was not found.
  void NoteBound(double lower_bound_ns);
  void CountSimulated(int plans) { simulated_ += plans; }

  // Whether a plan with that lower bound cannot be better than the best.
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
  bool IsProvenMisfit(const Pipeline& pipeline) const;

  const PlannerRequest& request_;
  CandidateSpace& space_;
  const SearchLimits& limits_;
  Cutoff& cutoff_;
  std::vector<FoundPlan> plans_;
  double bound_ns_ = std::numeric_limits<double>::infinity();
  absl::Status refusal_;
  bool has_misfit_ = false;
  int simulated_ = 0;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_FOUND_PLANS_H_
