// Searches that are cut short, at every place where they can be.
#include "partition/search/cutoff.h"

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
#include "partition/search/planner.h"
#include "partition/search/receipt_of.h"
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
  absl::StatusOr<Receipt> receipt;
  int64_t asked = 0;
};

// Cancelled when asked for the time after so many others.
Stopped StoppedAfter(const PlannerRequest& request, int64_t asks) {
  int64_t asked = 0;
  absl::StatusOr<Receipt> receipt =
      PlanJointly(request, {.is_cancelled = [&] { return ++asked > asks; }});
  return {std::move(receipt), asked};
}

TEST(Cutoff, KeepsToItsAnswer) {
  bool is_cancelled = false;
  const SearchLimits limits = {.is_cancelled = [&] { return is_cancelled; }};
  Cutoff cutoff(limits);
  EXPECT_FALSE(cutoff.IsReached());
  is_cancelled = true;
  EXPECT_OK(cutoff.status());  // it has not been asked yet
  EXPECT_TRUE(cutoff.IsReached());
  is_cancelled = false;
  EXPECT_TRUE(cutoff.IsReached());
  EXPECT_THAT(cutoff.status(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(Cutoff().IsReached());
}

TEST(Cutoff, IsReachedAtTheDeadline) {
  const SearchLimits past = {.deadline = absl::Now() - absl::Seconds(1)};
  Cutoff reached(past);
  EXPECT_TRUE(reached.IsReached());
  EXPECT_THAT(reached.status(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  const SearchLimits future = {.deadline = absl::Now() + absl::Hours(1)};
  EXPECT_FALSE(Cutoff(future).IsReached());
}

TEST(Cutoff, WithoutAPlanSaysHowFarTheSearchCame) {
  std::mt19937 random(1);
  const PlannerRequest request = CutRequest(random, 3, 8, 0);
  EXPECT_THAT(
      StoppedAfter(request, 0).receipt,
      StatusIs(absl::StatusCode::kCancelled, ::testing::HasSubstr("before a plan was found (")));
  EXPECT_THAT(PlanJointly(request, {.deadline = absl::Now() - absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Wherever the search is left: the plan is one that could be run, worth what its receipt says, and
// the bound is one that no plan of the whole search beats.
TEST(Cutoff, ThePlanSoFarIsHonest) {
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
    if (!whole.receipt.ok()) continue;
    EXPECT_FALSE(whole.receipt->is_cut_short);
    constexpr int kPlaces = 12;
    for (int place = 0; place < kPlaces; ++place) {
      const int64_t asks = place < kPlaces / 2 ? place * 3 : whole.asked * place / kPlaces;
      const absl::StatusOr<Receipt> receipt = StoppedAfter(request, asks).receipt;
      if (!receipt.ok()) {
        EXPECT_THAT(receipt, StatusIs(absl::StatusCode::kCancelled));
        continue;
      }
      EXPECT_EQ(receipt->is_cut_short, asks < whole.asked);
      EXPECT_OK(CheckFits(*receipt));
      EXPECT_EQ(ReceiptOf(receipt->plan, request.profile, request.cluster, request.objective)
                    ->objective_ns,
                receipt->objective_ns);
      EXPECT_LE(receipt->lower_bound_ns, receipt->objective_ns);
      EXPECT_LE(receipt->lower_bound_ns, whole.receipt->objective_ns)
          << "trial " << trial << " after " << asks << " of " << whole.asked;
      EXPECT_GE(receipt->objective_ns, whole.receipt->objective_ns);
      ++cut_short;
      later_beaten += receipt->objective_ns > whole.receipt->objective_ns;
    }
    // A limit that is not reached changes nothing.
    const absl::StatusOr<Receipt> in_time = StoppedAfter(request, whole.asked).receipt;
    ASSERT_OK(in_time);
    EXPECT_FALSE(in_time->is_cut_short);
    EXPECT_EQ(in_time->plan, whole.receipt->plan);
    EXPECT_EQ(in_time->lower_bound_ns, whole.receipt->lower_bound_ns);
  }
  EXPECT_GT(cut_short, 60);
  EXPECT_GT(later_beaten, 10);
}

// Cuts into one stage per rank are found soonest, so all such schedules come before those with a
// lower bound that take long: what is found in time beats each of them.
TEST(Cutoff, SchedulesOfOneStagePerRankComeFirst) {
  std::mt19937 random(5);
  int with_chunks = 0;
  for (int trial = 0; trial < 6; ++trial) {
    const PlannerRequest request = CutRequest(random, 3, 30, 0);
    const int best_chunks = [&] {
      const Receipt whole = PlanJointly(request).value();
      return whole.plan.num_stages() / whole.plan.num_ranks();
    }();
    with_chunks += best_chunks > 1;
    int64_t asks = 0;
    absl::StatusOr<Receipt> first = StoppedAfter(request, asks).receipt;
    while (!first.ok()) first = StoppedAfter(request, ++asks).receipt;
    EXPECT_EQ(first->plan.num_stages(), first->plan.num_ranks());
  }
  EXPECT_GT(with_chunks, 2);  // otherwise it says nothing
}

TEST(Cutoff, EveryBetterPlanIsTold) {
  std::mt19937 random(3);
  const PlannerRequest request = CutRequest(random, 4, 12, 0);
  std::vector<double> told;
  const Receipt receipt =
      PlanJointly(request, {.on_better = [&](double ns) { told.push_back(ns); }}).value();
  ASSERT_FALSE(told.empty());
  for (size_t i = 1; i < told.size(); ++i) EXPECT_LE(told[i], told[i - 1]);
  EXPECT_EQ(told.back(), receipt.objective_ns);
}

}  // namespace
}  // namespace stagecoach::partition
