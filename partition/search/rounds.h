#ifndef STAGECOACH_PARTITION_SEARCH_ROUNDS_H_
#define STAGECOACH_PARTITION_SEARCH_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partition/search/candidates.h"
#include "partition/search/found_plans.h"
#include "partition/search/planner.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// Below this gap no round is worth its time: 1 % of the objective.
inline constexpr double kSmallGap = 0.01;

// Improves the plans found so far, in rounds, each of which tries harder than the one before:
//
//  - cuts that are best for easier and harder requests (more and less memory, faster and slower
//    links), so that no easier request has a better plan only because it was searched differently;
// - the best cuts under every other schedule of their shape;
// - moves of their boundaries by many layers, then by fewer;
// - orders of our own for the best cuts, and for cuts near them;
// - the best cut with a few boundaries moved at random, improved again.
//
// Deterministic except for the budget, and a later budget never has a worse result.
class Rounds {
 public:
  // All must outlive it.
  Rounds(const PlannerRequest& request, CandidateSpace& space, FoundPlans& plans)
      : request_(request), space_(space), plans_(plans) {}

  // Runs before all combinations have been considered: other schedules, and moves of boundaries.
  absl::Status Begin();
  // Ends when the gap is below kSmallGap, rounds gain nothing and either the gap is below
  // kWorthAllTime or there is no deadline, after kMostRounds, or when the budget is reached.
  // `searches_orders`: whether orders of our own are allowed. Returns the number of rounds.
  absl::StatusOr<int> Run(bool searches_orders);

 private:
  // Returns true if this was not done yet, with cuts for other requests (no cut), moves, or orders.
  bool IsNew(absl::string_view what, const Candidate& candidate, absl::string_view schedule,
             absl::Span<const int> first_layer = {});
  bool IsOver() const;
  // Returns true if the best plan, which exists, is at most that far from its bound.
  bool IsWithin(double gap) const;
  // Returns the best plan of each choice, the best of all first.
  std::vector<FoundPlan> BestOfChoices(size_t count) const;
  // Returns the candidates with the best plans; then those without any, the lowest bound first.
  std::vector<Candidate> BestCandidates(size_t count) const;
  // Considers a cut, and moves its boundaries with at most that many simulated actions.
  absl::Status Start(const Candidate& candidate, const schedule::Schedule& schedule,
                     std::vector<int> start, int64_t most_actions);

  absl::Status ImproveCuts();
  // Cuts the best candidates as if the devices were different.
  absl::Status TryOtherRequests();
  absl::Status TryOther(const Candidate& candidate, const schedule::Schedule& schedule,
                        const Relaxation& relaxation);
  absl::Status TryOtherSchedules();
  absl::Status MoveBoundaries();
  absl::Status TryOrders();
  // Tries orders for cuts near those of the best plans, as long as that helps.
  absl::Status TryOrdersNearby();
  // Does the same for cuts that are best if nothing limits memory: another order may make them fit.
  absl::Status TryOrdersOfFreeCuts();
  // Returns the plan's cut and those with boundaries a few layers away in which no rank alone takes
  // as long as the best plan; those that are fastest under the plan's own order first.
  absl::StatusOr<std::vector<FoundPlan>> Nearby(const FoundPlan& plan);
  absl::Status Kick();
  // Returns the boundaries of a plan, with a few moved elsewhere between their neighbors.
  std::vector<int> Kicked(const FoundPlan& plan);
  // Returns a number from 0 to n - 1; the same on every machine.
  int Draw(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  const PlannerRequest& request_;
  CandidateSpace& space_;
  FoundPlans& plans_;
  double bound_ns_ = 0;       // no plan can beat this, as far as is known
  size_t scale_ = 1;          // of this round
  int64_t most_actions_ = 0;  // simulated to move the boundaries of a plan
  std::mt19937 random_{1};
  absl::flat_hash_set<std::string> done_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_ROUNDS_H_
