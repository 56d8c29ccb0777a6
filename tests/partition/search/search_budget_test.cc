// Cuts searches short at every place where that is possible.
#include "partition/search/search_budget.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/search/planner.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using testing::StatusIs;

constexpr int64_t kNeverAsked = std::numeric_limits<int64_t>::max();

PlannerRequest CutRequest(std::mt19937& random, int devices, int layers, int64_t memory_bytes) {
  PlannerRequest request;
  SizedLayers sized = {.micro_batch_rows = 1, .layers = RandomLayers(random, layers)};
  for (int i = 0; i < layers; ++i) {
    LayerCost& layer = sized.layers[static_cast<size_t>(i)];
    layer.name = "layer." + std::to_string(i);
    layer.forward_ns = 100 * (layer.forward_ns + 1);
    if (i % 3 != 0) layer.recompute_stash_bytes = layer.memory.stash_bytes / 4;
  }
  request.profile = {.model = "cut", .sizes = {sized}};
  request.cluster = UniformCluster(devices, memory_bytes);
  request.batch_rows = 8;
  return request;
}

struct Stopped {
  absl::StatusOr<PlanEvaluation> evaluation;
  int64_t asked = 0;
};

// Cancels the search after `asks` queries for the time.
Stopped StoppedAfter(const PlannerRequest& request, int64_t asks) {
  int64_t asked = 0;
  absl::StatusOr<PlanEvaluation> evaluation =
      FindPlan(request, {.is_cancelled = [&] { return ++asked > asks; }});
  return {std::move(evaluation), asked};
}

TEST(SearchBudget, KeepsToItsAnswer) {
  bool is_cancelled = false;
  const SearchLimits limits = {.is_cancelled = [&] { return is_cancelled; }};
  SearchBudget budget(limits);
  EXPECT_FALSE(budget.IsReached());
  is_cancelled = true;
  EXPECT_OK(budget.status());  // it has not been queried yet
  EXPECT_TRUE(budget.IsReached());
  is_cancelled = false;
  EXPECT_TRUE(budget.IsReached());
  EXPECT_THAT(budget.status(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(SearchBudget().IsReached());
}

TEST(SearchBudget, IsReachedAtTheDeadline) {
  const SearchLimits past = {.deadline = absl::Now() - absl::Seconds(1)};
  SearchBudget reached(past);
  EXPECT_TRUE(reached.IsReached());
  EXPECT_THAT(reached.status(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  const SearchLimits future = {.deadline = absl::Now() + absl::Hours(1)};
  EXPECT_FALSE(SearchBudget(future).IsReached());
}

// A share of the time is kept for what comes after Release; a search that was stopped stays so.
TEST(SearchBudget, ReservesTimeForWhatFollows) {
  const SearchLimits future = {.deadline = absl::Now() + absl::Hours(1)};
  SearchBudget budget(future);
  budget.Reserve(0.5);
  EXPECT_FALSE(budget.IsReached());
  EXPECT_FALSE(budget.Release());
  budget.Reserve(1.0);
  EXPECT_TRUE(budget.IsReached());
  EXPECT_TRUE(budget.Release());
  EXPECT_FALSE(budget.IsReached());
  EXPECT_OK(budget.status());
  const SearchLimits stopped = {.is_cancelled = [] { return true; }};
  SearchBudget cancelled(stopped);
  cancelled.Reserve(0.5);
  EXPECT_TRUE(cancelled.IsReached());
  EXPECT_TRUE(cancelled.Release());
  EXPECT_THAT(cancelled.status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST(SearchBudget, WithoutAPlanSaysHowFarTheSearchCame) {
  std::mt19937 random(1);
  const PlannerRequest request = CutRequest(random, 3, 8, 0);
  EXPECT_THAT(StoppedAfter(request, 0).evaluation,
              StatusIs(absl::StatusCode::kCancelled, "before a plan was found ("));
  EXPECT_THAT(FindPlan(request, {.deadline = absl::Now() - absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Wherever the search ends, the plan can run and takes what its evaluation says, and no plan of the
// whole search beats the bound.
TEST(SearchBudget, ThePlanSoFarIsHonest) {
  std::mt19937 random(2);
  int cut_short = 0, later_beaten = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const int devices = 2 + static_cast<int>(random() % 3);
    const bool has_many_cuts = trial % 4 == 0;
    const int layers = has_many_cuts ? 40 : devices + 4;
    const auto memory_bytes =
        static_cast<int64_t>(trial % 3 == 0 ? 0 : (has_many_cuts ? 400'000 : 110'000));
    PlannerRequest request = CutRequest(random, devices, layers, memory_bytes);
    if (trial % 2 == 1) request.schedule = trial % 4 == 1 ? "zb-h1" : "zb-v";
    if (trial % 5 == 0) request.objective = PlanObjective::kBottleneck;
    const Stopped whole = StoppedAfter(request, kNeverAsked);
    ASSERT_GT(whole.asked, 0);
    if (!whole.evaluation.ok()) continue;
    EXPECT_FALSE(whole.evaluation->is_cut_short);
    constexpr int kPlaces = 12;
    for (int place = 0; place < kPlaces; ++place) {
      const int64_t asks = place < kPlaces / 2 ? place * 3 : whole.asked * place / kPlaces;
      const absl::StatusOr<PlanEvaluation> evaluation = StoppedAfter(request, asks).evaluation;
      if (!evaluation.ok()) {
        EXPECT_THAT(evaluation, StatusIs(absl::StatusCode::kCancelled));
        continue;
      }
      EXPECT_EQ(evaluation->is_cut_short, asks < whole.asked);
      EXPECT_OK(CheckFits(*evaluation));
      EXPECT_EQ(
          EvaluatePlan(evaluation->plan(), request.profile, request.cluster, request.objective)
              ->objective_ns,
          evaluation->objective_ns);
      EXPECT_LE(evaluation->lower_bound_ns, evaluation->objective_ns);
      EXPECT_LE(evaluation->lower_bound_ns, whole.evaluation->objective_ns)
          << "trial " << trial << " after " << asks << " of " << whole.asked;
      EXPECT_GE(evaluation->objective_ns, whole.evaluation->objective_ns);
      ++cut_short;
      later_beaten += evaluation->objective_ns > whole.evaluation->objective_ns;
    }
    // A limit that is not reached changes nothing.
    const absl::StatusOr<PlanEvaluation> in_time = StoppedAfter(request, whole.asked).evaluation;
    ASSERT_OK(in_time);
    EXPECT_FALSE(in_time->is_cut_short);
    EXPECT_EQ(in_time->plan(), whole.evaluation->plan());
    EXPECT_EQ(in_time->lower_bound_ns, whole.evaluation->lower_bound_ns);
  }
  EXPECT_GT(cut_short, 60);
  EXPECT_GT(later_beaten, 10);
}

// Cuts into one stage per rank are found fastest, so all such schedules come before those with a
// lower bound that take long: what is found in time beats each of them.
TEST(SearchBudget, SchedulesOfOneStagePerRankComeFirst) {
  std::mt19937 random(5);
  int with_chunks = 0;
  for (int trial = 0; trial < 6; ++trial) {
    const PlannerRequest request = CutRequest(random, 3, 30, 0);
    const int best_chunks = [&] {
      const PlanEvaluation whole = FindPlan(request).value();
      return whole.plan().num_stages() / whole.plan().num_ranks();
    }();
    with_chunks += best_chunks > 1;
    int64_t asks = 0;
    absl::StatusOr<PlanEvaluation> first = StoppedAfter(request, asks).evaluation;
    while (!first.ok()) first = StoppedAfter(request, ++asks).evaluation;
    EXPECT_EQ(first->plan().num_stages(), first->plan().num_ranks());
  }
  EXPECT_GT(with_chunks, 2);  // otherwise the test shows nothing
}

TEST(SearchBudget, EveryBetterPlanIsTold) {
  std::mt19937 random(3);
  const PlannerRequest request = CutRequest(random, 4, 12, 0);
  std::vector<double> told;
  const PlanEvaluation evaluation =
      FindPlan(request, {.on_better = [&](double ns) { told.push_back(ns); }}).value();
  ASSERT_FALSE(told.empty());
  for (size_t i = 1; i < told.size(); ++i) EXPECT_LE(told[i], told[i - 1]);
  EXPECT_EQ(told.back(), evaluation.objective_ns);
}

}  // namespace
}  // namespace stagecoach::partition
