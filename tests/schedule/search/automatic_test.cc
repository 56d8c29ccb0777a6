#include "schedule/search/automatic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/every_order.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns equal ranks with times and `limit` whole-device stashes each, of which half remains until
// W.
AutomaticRequest Uniform(int ranks, int micro_batches, const DeviceTimes& times, int64_t latency_ns,
                         double limit) {
  AutomaticRequest request;
  request.ranks = ranks;
  request.micro_batches = micro_batches;
  request.costs = LoopCosts(ranks, 1, times, latency_ns);
  request.stash.assign(static_cast<size_t>(ranks), {.forward = 1.0, .weight = 0.5});
  request.stash_limit.assign(static_cast<size_t>(ranks), limit);
  return request;
}

int64_t ObjectiveNs(const AutomaticRequest& request, const Schedule& schedule) {
  const Durations durations =
      SimulateDurations(Lower(schedule).value(), request.costs, request.sends).value();
  return request.objective == OrderObjective::kSpan ? durations.span_ns : durations.step_ns;
}

// Returns the least objective of the generators that fit; the largest number if none does.
int64_t BestGeneratedNs(const AutomaticRequest& request) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (const Generator& generator : Generators()) {
    if (generator.placement != request.placement) continue;
    if (generator.chunks != request.chunks && !generator.any_chunks) continue;
    const absl::StatusOr<Schedule> schedule =
        generator.generate({request.ranks, request.micro_batches, request.chunks});
    if (!schedule.ok()) continue;
    if (!request.stash_limit.empty() &&
        !CheckStash(*schedule, request.stash, request.stash_limit).ok()) {
      continue;
    }
    best = std::min(best, ObjectiveNs(request, *schedule));
  }
  return best;
}

// Requests with random times, sizes and limits; every limit holds one micro-batch.
class RandomRequests {
 public:
  explicit RandomRequests(uint64_t seed) : random_(seed) {}

  int Draw(int min, int max) { return std::uniform_int_distribution<int>(min, max)(random_); }

  AutomaticRequest Next(int ranks, int micro_batches, int chunks, Placement placement) {
    AutomaticRequest request;
    request.ranks = ranks;
    request.micro_batches = micro_batches;
    request.chunks = chunks;
    request.placement = placement;
    request.objective = Draw(0, 1) == 0 ? OrderObjective::kSpan : OrderObjective::kStep;
    const bool fusing_pays = Draw(0, 2) == 0;
    for (int s = 0; s < ranks * chunks; ++s) {
      StageTimes times;
      times.forward_ns = Draw(1, 20);
      times.backward_input_ns = Draw(1, 20);
      times.backward_weight_ns = Draw(1, 20);
      times.backward_ns = times.backward_input_ns +
                          (fusing_pays ? Draw(0, static_cast<int>(times.backward_weight_ns))
                                       : times.backward_weight_ns);
      times.step_ns = Draw(0, 20);
      request.costs.stages.push_back(times);
      request.stash.push_back({.forward = 1.0, .weight = Draw(0, 6) / 4.0});
    }
    request.costs.links = {Link{.latency_ns = Draw(0, 8)}};
    request.costs.updates_in_backward = Draw(0, 1) == 0;
    if (Draw(0, 3) == 0) return request;
    for (int r = 0; r < ranks; ++r) {
      request.stash_limit.push_back(Draw(4 * chunks, 4 * chunks * micro_batches + 4) / 4.0);
    }
    return request;
  }

 private:
  std::mt19937_64 random_;
};

std::string Describe(const AutomaticRequest& request) {
  std::string text = "p=" + std::to_string(request.ranks) +
                     " m=" + std::to_string(request.micro_batches) +
                     " v=" + std::to_string(request.chunks) +
                     (request.placement == Placement::kV ? " V" : " loop") + " limits";
  for (const double limit : request.stash_limit) text += " " + std::to_string(limit);
  return text;
}

// Zero Bubble paper (Qi et al. 2023), tables 5 and 9: bubble rates of its own search with room for
// p and for 2p micro-batches (ZB-1p, ZB-2p).
struct PublishedRow {
  int p, m;
  double forward_ms, backward_ms, weight_ms, latency_ms;
  double zb_1p, zb_2p;
};

constexpr PublishedRow kPublished[] = {
    {8, 24, 18.522, 18.086, 9.337, .601, .1585, .0433},
    {8, 32, 18.513, 18.086, 9.331, .626, .1242, .0039},
    {8, 64, 18.546, 18.097, 9.321, .762, .0674, .0026},
    {16, 48, 11.347, 11.248, 8.132, .377, .1397, .0066},
    {16, 64, 11.307, 11.254, 8.101, .379, .1088, .0054},
    {16, 128, 11.325, 11.308, 8.109, .378, .0576, .0028},
};

class PublishedSearch : public ::testing::TestWithParam<PublishedRow> {
 protected:
  // Returns the rate to four digits, as published.
  static double BubbleRate(double limit) {
    const PublishedRow& row = GetParam();
    const auto ns = [](double ms) { return static_cast<int64_t>(std::llround(1e6 * ms)); };
    const AutomaticRequest request =
        Uniform(row.p, row.m, {ns(row.forward_ms), ns(row.backward_ms), ns(row.weight_ms)},
                ns(row.latency_ms), limit);
    const Schedule schedule = Automatic(request).value();
    return std::round(1e4 * Simulate(schedule, request.costs).value().bubble_rate) / 1e4;
  }
};

TEST_P(PublishedSearch, ReachesZb1p) { EXPECT_LE(BubbleRate(GetParam().p), GetParam().zb_1p); }
TEST_P(PublishedSearch, ReachesZb2p) { EXPECT_LE(BubbleRate(2 * GetParam().p), GetParam().zb_2p); }

INSTANTIATE_TEST_SUITE_P(ZeroBubblePaper, PublishedSearch, ::testing::ValuesIn(kPublished),
                         [](const auto& row) {
                           return "p" + std::to_string(row.param.p) + "m" +
                                  std::to_string(row.param.m);
                         });

TEST(Automatic, IsValidWithinTheLimitAndNoSlowerThanAnyGenerator) {
  RandomRequests random(1);
  for (int k = 0; k < 60; ++k) {
    const int chunks = random.Draw(1, 2);
    const bool v = chunks == 2 && random.Draw(0, 1) == 1;
    const int ranks = random.Draw(1, 6);
    const int micro_batches = random.Draw(1, 12);
    AutomaticRequest request =
        random.Next(ranks, micro_batches, chunks, v ? Placement::kV : Placement::kLoop);
    constexpr double kEfforts[] = {1e-6, 0.1, 1.0};
    request.effort = kEfforts[k % 3];
    SCOPED_TRACE(Describe(request));
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, Automatic(request));
    EXPECT_EQ(schedule.name, "auto");
    EXPECT_OK(Validate(Lower(schedule).value()));
    if (!request.stash_limit.empty()) {
      EXPECT_OK(CheckStash(schedule, request.stash, request.stash_limit));
    }
    EXPECT_LE(ObjectiveNs(request, schedule), BestGeneratedNs(request));
  }
}

// Messages that wait for their receives slow down orders that look good otherwise.
TEST(Automatic, IsNoSlowerThanAnyGeneratorUnderTheSendsItIsAskedFor) {
  for (const Sends sends : {Sends::kRendezvous, Sends::kBlocking}) {
    for (const int64_t latency_ns : {0, 500, 2000, 5000}) {
      for (const Placement placement : {Placement::kLoop, Placement::kV}) {
        const int chunks = placement == Placement::kV ? 2 : 1;
        AutomaticRequest request{.ranks = 4, .micro_batches = 6, .chunks = chunks};
        request.placement = placement;
        request.costs =
            UniformCosts(PlaceStages(placement, 4, chunks), {1000, 1000, 1000}, latency_ns);
        request.sends = sends;
        ASSERT_OK_AND_ASSIGN(const Schedule schedule, Automatic(request));
        EXPECT_LE(ObjectiveNs(request, schedule), BestGeneratedNs(request)) << latency_ns;
      }
    }
  }
}

// Summed over many small requests; never below the optimum in any.
TEST(Automatic, IsWithinTwoPercentOfTheBestOfAllOrders) {
  struct Shape {
    int ranks, micro_batches, chunks;
    Placement placement;
    int count;
  };
  constexpr Shape kShapes[] = {
      {2, 2, 1, Placement::kLoop, 30}, {2, 3, 1, Placement::kLoop, 30},
      {3, 2, 1, Placement::kLoop, 30}, {3, 3, 1, Placement::kLoop, 5},
      {2, 1, 2, Placement::kLoop, 20}, {2, 1, 2, Placement::kV, 20},
      {1, 2, 2, Placement::kLoop, 5},
  };
  RandomRequests random(2);
  double excess = 0.0;
  int requests = 0;
  for (const Shape& shape : kShapes) {
    for (int k = 0; k < shape.count; ++k) {
      const AutomaticRequest request =
          random.Next(shape.ranks, shape.micro_batches, shape.chunks, shape.placement);
      SCOPED_TRACE(Describe(request));
      ASSERT_OK_AND_ASSIGN(const Schedule schedule, Automatic(request));
      const int64_t best = BestOfEveryOrder(request);
      const int64_t found = ObjectiveNs(request, schedule);
      EXPECT_GE(found, best);
      excess += static_cast<double>(found) / static_cast<double>(best) - 1.0;
      ++requests;
    }
  }
  EXPECT_LE(excess / requests, 0.02);
}

TEST(Automatic, FillsEveryPauseWhereRoomAllows) {
  const AutomaticRequest request = Uniform(4, 24, {100, 100, 100}, 0, 8.0);
  EXPECT_EQ(ObjectiveNs(request, Automatic(request).value()), 24 * 300);
}

// A V placement has no bubble at the stash of 1F1B.
TEST(Automatic, ReachesZeroBubbleInAVPlacement) {
  AutomaticRequest request;
  request.ranks = 4;
  request.micro_batches = 12;
  request.chunks = 2;
  request.placement = Placement::kV;
  request.costs = LoopCosts(4, 2, {200, 200, 200}, 0);
  request.stash.assign(8, {.forward = 0.5, .weight = 0.5});
  request.stash_limit.assign(4, 4.0);
  EXPECT_EQ(ObjectiveNs(request, Automatic(request).value()), 12 * 600);
}

TEST(Automatic, FusesTheBackwardPassWhereNothingElseIsToBeGained) {
  AutomaticRequest request = Uniform(1, 5, {100, 100, 100}, 0, 5.0);
  request.costs.stages[0].backward_ns = 150;
  EXPECT_EQ(ObjectiveNs(request, Automatic(request).value()), 5 * 250);
}

// Some W must fill the pauses, others are better fused with their B.
TEST(Automatic, FusesSomeBackwardPassesAndNotOthers) {
  AutomaticRequest request = Uniform(4, 16, {100, 100, 100}, 0, 4.0);
  for (StageTimes& times : request.costs.stages) times.backward_ns = 170;
  const Schedule schedule = Automatic(request).value();
  int fused = 0;
  int apart = 0;
  for (const std::vector<Action>& list : schedule.actions) {
    for (const Action& action : list) {
      fused += action.op == Op::kBackward ? 1 : 0;
      apart += action.op == Op::kBackwardInput ? 1 : 0;
    }
  }
  EXPECT_GT(fused, 0);
  EXPECT_GT(apart, 0);
}

TEST(Automatic, MoreRoomIsNeverWorse) {
  int64_t last = std::numeric_limits<int64_t>::max();
  for (const double limit : {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}) {
    const AutomaticRequest request = Uniform(4, 12, {110, 100, 70}, 5, limit);
    const int64_t span = ObjectiveNs(request, Automatic(request).value());
    EXPECT_LE(span, last) << "limit " << limit;
    last = span;
  }
}

TEST(Automatic, GivesTheSameScheduleAgain) {
  RandomRequests random(3);
  const AutomaticRequest request = random.Next(4, 6, 2, Placement::kV);
  EXPECT_EQ(Automatic(request).value(), Automatic(request).value());
}

TEST(Automatic, RefusesALimitBelowOneMicroBatch) {
  AutomaticRequest request = Uniform(3, 4, {100, 100, 100}, 0, 2.0);
  request.stash_limit[1] = 0.75;
  EXPECT_THAT(Automatic(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("rank 1"), HasSubstr("stash of 1 "), HasSubstr("0.75"))));
}

TEST(Automatic, TakesALimitOfOneMicroBatch) {
  const AutomaticRequest request = Uniform(3, 4, {100, 100, 100}, 7, 1.0);
  EXPECT_THAT(Automatic(request), IsOk());
}

// W may keep more than B does; fused they never keep it.
TEST(Automatic, FusesWhereTheWeightStashWouldExceedTheLimit) {
  AutomaticRequest request = Uniform(2, 3, {100, 100, 100}, 0, 1.0);
  for (StageStash& stash : request.stash) stash.weight = 1.5;
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Automatic(request));
  EXPECT_FALSE(schedule.SplitsBackward(StageId(0)));
  EXPECT_FALSE(schedule.SplitsBackward(StageId(1)));
}

TEST(Automatic, RefusesRequestsOutOfRange) {
  const AutomaticRequest good = Uniform(2, 2, {100, 100, 100}, 0, 2.0);
  ASSERT_THAT(Automatic(good), IsOk());
  std::vector<AutomaticRequest> bad(11, good);
  bad[0].ranks = 0;
  bad[1].micro_batches = 0;
  bad[2].chunks = 0;
  bad[3].placement = Placement::kV;
  bad[4].micro_batches = kMaxPasses;
  bad[5].costs.stages.pop_back();
  bad[6].stash.pop_back();
  bad[7].stash_limit.pop_back();
  bad[8].effort = 0;
  bad[9].effort = 1.1;
  bad[10].effort = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THAT(Automatic(bad[i]), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

TEST(Automatic, RefusesAStashThatIsNoSize) {
  for (const double size :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    AutomaticRequest request = Uniform(2, 2, {100, 100, 100}, 0, 2.0);
    request.stash[1].weight = size;
    EXPECT_THAT(Automatic(request), IsRefused("stage 1"));
  }
}

}  // namespace
}  // namespace stagecoach::schedule
