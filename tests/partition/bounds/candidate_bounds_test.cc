#include "partition/bounds/candidate_bounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "partition/search/candidates.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

LayerTable TableOfLayers(std::vector<LayerCost> layers, bool updates_in_backward = false) {
  return LayerTable(std::move(layers), EndMemory(), updates_in_backward, {});
}

std::vector<double> RandomSpeeds(std::mt19937& random, int ranks) {
  std::vector<double> speeds(static_cast<size_t>(ranks));
  for (double& speed : speeds) speed = random() % 2 == 0 ? 1.0 : 0.25 * (1 + random() % 8);
  return speeds;
}

double Fastest(const std::vector<double>& speeds) {
  return *std::max_element(speeds.begin(), speeds.end());
}

// Return the time of F and B, or F and BW, of one micro-batch.
double TurnNs(const LayerCost& layer) { return layer.forward_ns + layer.backward_input_ns; }
double FusedNs(const LayerCost& layer) {
  return TurnNs(layer) + layer.backward_weight_ns - layer.shared_backward_ns;
}
double WorkNs(const LayerCost& layer, int micro_batches) {
  return micro_batches * FusedNs(layer) + layer.step_ns;
}

using OfLayer = std::function<double(const LayerCost&)>;

// Returns the least, over all cuts, of the slowest stage: `own` of its layers at its speed, plus
// `before` of all earlier ones on the fastest device.
double LeastOfCuts(const std::vector<LayerCost>& layers, const std::vector<double>& speeds,
                   const OfLayer& own, const OfLayer& before) {
  const size_t end = layers.size();
  const double fastest = Fastest(speeds);
  const std::function<double(size_t, size_t, double)> least = [&](size_t begin, size_t stage,
                                                                  double before_ns) -> double {
    if (stage == speeds.size()) {
      return begin == end ? 0.0 : std::numeric_limits<double>::infinity();
    }
    double best_ns = std::numeric_limits<double>::infinity();
    double own_ns = 0, passed_ns = 0;
    for (size_t layer = begin; layer < end; ++layer) {
      own_ns += own(layers[layer]);
      passed_ns += before(layers[layer]);
      best_ns = std::min(best_ns, std::max(before_ns / fastest + own_ns / speeds[stage],
                                           least(layer + 1, stage + 1, before_ns + passed_ns)));
    }
    return best_ns;
  };
  return least(0, 0, 0.0);
}

struct Trial {
  std::vector<LayerCost> layers;
  std::vector<double> speeds;
  int micro_batches;
};

Trial NextTrial(std::mt19937& random) {
  const int ranks = 1 + static_cast<int>(random() % 4);
  Trial trial = {RandomLayers(random, ranks + static_cast<int>(random() % 5)),
                 RandomSpeeds(random, ranks), 1 + static_cast<int>(random() % 6)};
  for (LayerCost& layer : trial.layers) layer.step_ns *= static_cast<double>(random() % 20);
  return trial;
}

constexpr int kTrials = 400;

double Close(double ns) { return 1e-9 * (1 + ns); }

// Returns the least, over all ways to spread the layers over equally fast ranks, of the fullest
// rank's time.
double LeastFullest(const std::vector<LayerCost>& layers, size_t ranks, int micro_batches) {
  double least_ns = std::numeric_limits<double>::infinity();
  std::vector<double> rank_ns(ranks);
  const std::function<void(size_t)> place = [&](size_t layer) {
    if (layer == layers.size()) {
      least_ns = std::min(least_ns, *std::max_element(rank_ns.begin(), rank_ns.end()));
      return;
    }
    for (double& own_ns : rank_ns) {
      const double before_ns = own_ns;
      own_ns += WorkNs(layers[layer], micro_batches);
      if (own_ns < least_ns) place(layer + 1);
      own_ns = before_ns;
    }
  };
  place(0);
  return least_ns;
}

// docs/planner.md, "Why the bounds hold": the known terms, and what no division beats.
TEST(CandidateBounds, TheSimpleBoundIsTheLargestOfItsTerms) {
  std::mt19937 random(1);
  int more_than_known = 0;
  for (int i = 0; i < kTrials; ++i) {
    const Trial trial = NextTrial(random);
    const int m = trial.micro_batches;
    const double fastest = Fastest(trial.speeds);
    const LayerTable table = TableOfLayers(trial.layers);
    for (const bool is_in_turn : {false, true}) {
      double known_ns = 0, before_ns = 0, all_ns = 0;
      for (const LayerCost& layer : trial.layers) {
        const double turn_ns = (is_in_turn ? before_ns : 0.0) + m * TurnNs(layer);
        known_ns = std::max({known_ns, turn_ns / fastest, WorkNs(layer, m) / fastest});
        before_ns += TurnNs(layer);
        all_ns += WorkNs(layer, m);
      }
      const double speed = std::accumulate(trial.speeds.begin(), trial.speeds.end(), 0.0);
      known_ns = std::max(known_ns, all_ns / speed);
      const double fullest_ns = LeastFullest(trial.layers, trial.speeds.size(), m) / fastest;
      const double bound_ns =
          SimpleBoundNs(table, trial.speeds, m,
                        is_in_turn ? NeededNs(table, /*edges=*/{}) : std::vector<double>());
      EXPECT_GE(bound_ns, known_ns - Close(known_ns)) << i;
      EXPECT_LE(bound_ns, std::max(known_ns, fullest_ns) + Close(known_ns)) << i;
      more_than_known += bound_ns > known_ns + Close(known_ns) ? 1 : 0;
    }
  }
  EXPECT_GT(more_than_known, kTrials / 20);
}

// A diamond of 0 - (1, 2) - 3, and an independent layer 4.
TEST(CandidateBounds, ALayerOfAGraphNeedsThoseThatLeadToIt) {
  std::vector<LayerCost> layers(5);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].forward_ns = std::pow(10.0, static_cast<double>(i));
    layers[i].backward_input_ns = 2 * layers[i].forward_ns;
  }
  const std::vector<Edge> edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  EXPECT_THAT(NeededNs(TableOfLayers(layers), edges), ::testing::ElementsAre(0, 3, 3, 333, 0));
  EXPECT_THAT(NeededNs(TableOfLayers(layers), {}), ::testing::ElementsAre(0, 3, 33, 333, 3333));
}

TEST(CandidateBounds, TheBoundOfABottleneckIsThatOfTheBestCut) {
  std::mt19937 random(2);
  for (int i = 0; i < kTrials; ++i) {
    const Trial trial = NextTrial(random);
    const double expected_ns = LeastOfCuts(
        trial.layers, trial.speeds,
        [&](const LayerCost& layer) { return WorkNs(layer, trial.micro_batches); },
        [](const LayerCost&) { return 0.0; });
    const auto bound_ns = ChainBoundNs(TableOfLayers(trial.layers), trial.speeds,
                                       trial.micro_batches, PlanObjective::kBottleneck);
    ASSERT_OK(bound_ns);
    EXPECT_NEAR(*bound_ns, expected_ns, Close(expected_ns)) << i;
  }
}

// Each stage counts with the passes that must come before it or after it.
TEST(CandidateBounds, TheBoundOfAStepIsThatOfTheBestCut) {
  std::mt19937 random(3);
  for (int i = 0; i < kTrials; ++i) {
    const Trial trial = NextTrial(random);
    const int m = trial.micro_batches;
    const auto least = [&](const OfLayer& own, const OfLayer& before) {
      return LeastOfCuts(trial.layers, trial.speeds, own, before);
    };
    const double busy_ns = least([&](const LayerCost& layer) { return WorkNs(layer, m); },
                                 [](const LayerCost& layer) { return layer.forward_ns; });
    const double turn_ns = least([&](const LayerCost& layer) { return m * TurnNs(layer); }, TurnNs);
    for (const bool updates_in_backward : {false, true}) {
      const double fused_ns = least(
          [&](const LayerCost& layer) {
            return m * FusedNs(layer) + (updates_in_backward ? layer.step_ns : 0.0);
          },
          FusedNs);
      const LayerTable table = TableOfLayers(trial.layers, updates_in_backward);
      const auto any = ChainBoundNs(table, trial.speeds, m, PlanObjective::kStep);
      const auto fused = FusedChainBoundNs(table, trial.speeds, m);
      ASSERT_OK(any);
      ASSERT_OK(fused);
      EXPECT_NEAR(*any, std::max(busy_ns, turn_ns), Close(busy_ns)) << i;
      EXPECT_NEAR(*fused, fused_ns, Close(busy_ns)) << i;
    }
  }
}

TEST(CandidateBounds, NothingIsLostToRoundingWhereAllTimesAreWhole) {
  std::vector<LayerCost> layers(2);
  const auto rounding_ns = [&layers](std::vector<double> speeds) {
    return RoundingNs(TableOfLayers(layers), speeds, /*chunks=*/2, /*micro_batches=*/5);
  };
  // One ns for F and one for BW of each micro-batch in each chunk of a rank, and two for each stage
  // that is passed once.
  constexpr double kLost = 2.0 * (2 * 5 + 2 * 3);
  EXPECT_EQ(rounding_ns({1, 1, 1}), 0.0);
  EXPECT_EQ(rounding_ns({1, 0.5, 1}), kLost);
  for (double LayerCost::*time :
       {&LayerCost::forward_ns, &LayerCost::backward_input_ns, &LayerCost::backward_weight_ns,
        &LayerCost::shared_backward_ns, &LayerCost::step_ns}) {
    layers.back().*time = 3.0;
    EXPECT_EQ(rounding_ns({1, 1, 1}), 0.0);
    layers.back().*time = 2.5;
    EXPECT_EQ(rounding_ns({1, 1, 1}), kLost);
    layers.back().*time = 0.0;
  }
}

// Requests whose best plan has a known time.
PlannerRequest RequestFor(std::vector<LayerCost> layers, int devices, int micro_batches,
                          const std::string& schedule) {
  PlannerRequest request;
  for (size_t i = 0; i < layers.size(); ++i) layers[i].name = "layer." + std::to_string(i);
  request.profile = {.model = "bounded",
                     .sizes = {{.micro_batch_rows = 1, .layers = std::move(layers)}}};
  request.cluster = UniformCluster(devices);
  request.batch_rows = micro_batches;
  request.schedule = schedule;
  return request;
}

std::vector<LayerCost> EqualLayers(int count, double forward_ns, double backward_ns) {
  LayerCost layer = {.forward_ns = forward_ns,
                     .backward_input_ns = backward_ns,
                     .backward_weight_ns = backward_ns};
  layer.memory = {.parameter_bytes = 256, .input_bytes = 256, .output_bytes = 256};
  return std::vector<LayerCost>(static_cast<size_t>(count), layer);
}

absl::StatusOr<CandidateSpace> SpaceOf(const PlannerRequest& request) {
  static SearchBudget none;
  return CandidateSpace::Create(request, none);
}

// Checks the bounds that guide the search, and that of its evaluation.
void ExpectTight(const PlannerRequest& request, double optimum_ns) {
  const auto space = SpaceOf(request);
  ASSERT_OK(space);
  // A fused schedule has its own bound, which is known once it is generated.
  ASSERT_OK_AND_ASSIGN(const schedule::Schedule schedule,
                       space->ScheduleOf(space->candidates().front()));
  ASSERT_OK_AND_ASSIGN(const double bound_ns,
                       SpaceOf(request)->LowerBoundNs(space->candidates().front(), &schedule));
  EXPECT_EQ(bound_ns, optimum_ns);
  const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
  ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->objective_ns, optimum_ns);
  EXPECT_EQ(evaluation->lower_bound_ns, optimum_ns);
}

// A single micro-batch passes all layers forward and backward, wherever they are.
TEST(CandidateBounds, AreTightForOneMicroBatch) {
  std::mt19937 random(4);
  for (int i = 0; i < 30; ++i) {
    const int devices = 1 + static_cast<int>(random() % 4);
    std::vector<LayerCost> layers = RandomLayers(random, devices + static_cast<int>(random() % 3));
    double all_ns = 0;
    for (LayerCost& layer : layers) {
      layer.forward_ns += 1;
      layer.step_ns = 0;
      all_ns += FusedNs(layer);
    }
    ExpectTight(RequestFor(std::move(layers), devices, 1, "1f1b"), all_ns);
  }
}

// (m + p - 1) (F + BW): the classical pipeline of equal stages.
TEST(CandidateBounds, AreTightForEqualStages) {
  for (const int devices : {1, 2, 4}) {
    for (const int micro_batches : {4, 9}) {
      ExpectTight(RequestFor(EqualLayers(devices, 600, 450), devices, micro_batches, "1f1b"),
                  (micro_batches + devices - 1) * (600.0 + 900.0));
    }
  }
}

// The last rank begins when the others have been passed, and works from then on.
TEST(CandidateBounds, AreTightWhereABubbleIsFilled) {
  for (const int devices : {2, 3, 4}) {
    constexpr int kMicroBatches = 16;
    ExpectTight(RequestFor(EqualLayers(devices, 100, 100), devices, kMicroBatches, "zb-h2"),
                (devices - 1) * 100.0 + kMicroBatches * 300.0);
  }
}

// Any chain in which only the busiest device matters.
TEST(CandidateBounds, AreTightForBottlenecks) {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const int devices = 1 + static_cast<int>(random() % 4);
    const int micro_batches = 1 + static_cast<int>(random() % 6);
    std::vector<LayerCost> layers = RandomLayers(random, devices + static_cast<int>(random() % 4));
    for (LayerCost& layer : layers) layer.forward_ns += 1;
    const double least_ns = LeastOfCuts(
        layers, std::vector<double>(static_cast<size_t>(devices), 1.0),
        [&](const LayerCost& layer) { return WorkNs(layer, micro_batches); },
        [](const LayerCost&) { return 0.0; });
    PlannerRequest request = RequestFor(std::move(layers), devices, micro_batches, "1f1b");
    request.objective = PlanObjective::kBottleneck;
    ExpectTight(request, least_ns);
  }
}

// The first stage of a given schedule may be on any rank: the bound for stages in order does not
// apply.
TEST(CandidateBounds, HoldForStagesInAnyOrder) {
  std::mt19937 random(6);
  for (int i = 0; i < 60; ++i) {
    PlannerRequest request = RequestFor(RandomLayers(random, 6), 3, 4, kAnySchedule);
    for (LayerCost& layer : request.profile.sizes.front().layers) layer.forward_ns += 100;
    for (ClusterDevice& device : request.cluster.devices) {
      device.speed = 1 + static_cast<double>(random() % 8);
    }
    request.given = schedule::Generate("1f1b", {.ranks = 3, .micro_batches = 4}).value();
    std::reverse(request.given->rank_of_stage.begin(), request.given->rank_of_stage.end());
    std::reverse(request.given->actions.begin(), request.given->actions.end());
    const double bound_ns = SpaceOf(request)->candidates().front().lower_bound_ns;
    ASSERT_OK_AND_ASSIGN(const PlanEvaluation evaluation, FindPlan(request));
    EXPECT_LE(bound_ns, evaluation.objective_ns) << i;  // for the best of all cuts
  }
}

TEST(CandidateBounds, OneRankIsNotGivenSeveralStages) {
  const auto chunks_of = [](int devices) {
    const PlannerRequest request = RequestFor(EqualLayers(8, 100, 100), devices, 4, kAnySchedule);
    const auto space = SpaceOf(request);
    int most = 0;
    for (const Candidate& candidate : space->candidates()) most = std::max(most, candidate.chunks);
    return most;
  };
  EXPECT_EQ(chunks_of(1), 1);
  EXPECT_EQ(chunks_of(2), 4);
}

// Except for rounding, a device of twice the speed takes half the time.
TEST(CandidateBounds, ScaleWithTheSpeedOfAllDevices) {
  PlannerRequest request = RequestFor(EqualLayers(8, 2000, 1500), 4, 8, "zb-h1");
  const double bound_ns = SpaceOf(request)->candidates().front().lower_bound_ns;
  for (ClusterDevice& device : request.cluster.devices) device.speed = 2.0;
  const double lost_ns = 2.0 * (8 + 4);
  EXPECT_EQ(SpaceOf(request)->candidates().front().lower_bound_ns, bound_ns / 2 - lost_ns);
}

}  // namespace
}  // namespace stagecoach::partition
