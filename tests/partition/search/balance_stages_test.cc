#include "partition/search/balance_stages.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void Limit(BalanceRequest& request, int64_t memory_bytes) {
  for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = memory_bytes;
}

int64_t LimitOf(const BalanceRequest& request) {
  return request.cluster.devices.front().memory_bytes;
}

int64_t LargestPeak(const CompiledPlan& report) {
  int64_t largest_bytes = 0;
  for (const RankReport& rank : report.ranks) {
    largest_bytes = std::max(largest_bytes, rank.peak_bytes());
  }
  return largest_bytes;
}

int64_t LargestPeak(const Plan& plan, const BalanceRequest& request) {
  return LargestPeak(*CompilePlan(plan, request.layers, request.ends, request.cluster.transfers));
}

// Slowest stage, sum of squares, first layers: the order of PartitionChain.
using CutMerit = std::tuple<double, double, std::vector<int>>;

CutMerit CutMeritOf(const Plan& plan, const BalanceRequest& request) {
  double slowest = 0;
  double squares = 0;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    double ns = 0;
    for (int layer = plan.first(stage); layer <= plan.last(stage); ++layer) {
      ns += request.layers[layer].batch_ns(plan.micro_batches());
    }
    slowest = std::max(slowest, ns);
    squares += ns * ns;
  }
  return {slowest, squares, plan.first_layer};
}

// The results of trying every cut into every number of stages.
struct Survey {
  std::map<CutMerit, int64_t> peaks;   // largest peak of each cut over request.devices()
  std::map<int, int64_t> least_bytes;  // by number of stages: the largest peak of the roomiest cut
};

Survey SurveyAllCuts(const BalanceRequest& request) {
  const int layers = static_cast<int>(request.layers.size());
  Survey survey;
  for (unsigned cut = 0; cut < 1u << (layers - 1); ++cut) {
    Plan plan = {.first_layer = {0}, .num_layers = layers};
    for (int layer = 1; layer < layers; ++layer) {
      if ((cut >> (layer - 1)) & 1) plan.first_layer.push_back(layer);
    }
    plan.schedule = request.schedule(plan.num_stages()).value();
    const int64_t peak_bytes = LargestPeak(plan, request);
    const auto entry = survey.least_bytes.emplace(plan.num_stages(), peak_bytes).first;
    entry->second = std::min(entry->second, peak_bytes);
    if (plan.num_stages() == request.devices())
      survey.peaks[CutMeritOf(plan, request)] = peak_bytes;
  }
  return survey;
}

// Returns the schedule with the order of its ranks reversed, one stage per rank.
ScheduleMaker Reversed(ScheduleMaker maker) {
  return [maker](int devices) -> absl::StatusOr<schedule::Schedule> {
    ASSIGN_OR_RETURN(schedule::Schedule made, maker(devices));
    std::reverse(made.rank_of_stage.begin(), made.rank_of_stage.end());
    std::reverse(made.actions.begin(), made.actions.end());
    return made;
  };
}

BalanceRequest RandomRequest(std::mt19937& random) {
  BalanceRequest request;
  const int layers = 1 + static_cast<int>(random() % 6);
  request.layers = RandomLayers(random, layers);
  request.ends = RandomEnds(random);
  request.cluster = UniformCluster(1 + static_cast<int>(random() % layers));
  const char* const names[] = {"1f1b", "gpipe", "zb-h1"};
  request.schedule = GeneratedSchedule(names[random() % 3], 1 + static_cast<int>(random() % 6));
  if (random() % 2 == 0) request.schedule = Reversed(request.schedule);
  if (random() % 2 == 0) request.cluster.transfers = schedule::Transfers::kGrouped;
  return request;
}

// Returns a budget at which some cut just fits, or just does not.
int64_t RandomBudget(const Survey& survey, std::mt19937& random) {
  auto cut = survey.peaks.begin();
  std::advance(cut, random() % survey.peaks.size());
  return cut->second - static_cast<int64_t>(random() % 2);
}

TEST(BalanceStages, FindsTheBestOfAllCutsThatFit) {
  std::mt19937 random(1);
  for (int i = 0; i < 250; ++i) {
    SCOPED_TRACE(i);
    BalanceRequest request = RandomRequest(random);
    const Survey survey = SurveyAllCuts(request);
    Limit(request, RandomBudget(survey, random));
    const auto best = std::find_if(survey.peaks.begin(), survey.peaks.end(),
                                   [&](const auto& cut) { return cut.second <= LimitOf(request); });
    const auto made = BalanceStages(request);
    if (best == survey.peaks.end()) {
      ASSERT_THAT(made, StatusIs(absl::StatusCode::kResourceExhausted));
    } else {
      ASSERT_OK(made);
      ASSERT_EQ(made->plan.first_layer, std::get<2>(best->first));
    }
  }
}

TEST(BalanceStages, SaysHowLittleTheRoomiestCutNeedsAndHowManyStagesFit) {
  std::mt19937 random(2);
  for (int i = 0; i < 120; ++i) {
    SCOPED_TRACE(i);
    BalanceRequest request = RandomRequest(random);
    const Survey survey = SurveyAllCuts(request);
    const int64_t least_bytes = survey.least_bytes.at(request.devices());
    Limit(request, least_bytes * 4 / 5);
    const auto smallest =
        std::find_if(survey.least_bytes.begin(), survey.least_bytes.end(),
                     [&](const auto& entry) { return entry.second <= LimitOf(request); });
    const std::string advice =
        smallest == survey.least_bytes.end()
            ? "no number of stages fits"
            : absl::StrCat("the smallest number of stages that fits is ", smallest->first, "\n");
    ASSERT_THAT(
        BalanceStages(request),
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("needs " + base::FormatBytes(least_bytes)), HasSubstr(advice))));
  }
}

// Returns `count` equal layers whose memory is parameters and gradients, 100 MB each.
BalanceRequest HeavyLayers(int count) {
  BalanceRequest request = {.schedule = GeneratedSchedule("1f1b", 1)};
  request.layers.resize(count);
  for (LayerCost& layer : request.layers) {
    layer.forward_ns = 1000;
    layer.memory.parameter_bytes = 100'000'000;
  }
  return request;
}

TEST(BalanceStages, KeepsTheShapeOfTheRequest) {
  BalanceRequest request = HeavyLayers(6);
  request.cluster = UniformCluster(3);
  request.schedule = GeneratedSchedule("gpipe", 5);
  request.micro_batch_rows = 7;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 2, 4));
  EXPECT_EQ(made.plan.num_layers, 6);
  EXPECT_EQ(made.plan.schedule.name, "gpipe");
  EXPECT_EQ(made.plan.micro_batches(), 5);
  EXPECT_EQ(made.plan.micro_batch_rows, 7);
}

TEST(BalanceStages, CountsTheStepOncePerBatch) {
  BalanceRequest request;
  request.layers.resize(3);
  request.layers[0].forward_ns = 10;
  request.layers[1].step_ns = 100;
  request.layers[2].forward_ns = 10;
  request.cluster = UniformCluster(2);
  request.schedule = GeneratedSchedule("1f1b", 100);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 1));
}

TEST(BalanceStages, FitsABudgetOfExactlyThePredictedPeak) {
  BalanceRequest request = HeavyLayers(4);
  request.cluster = UniformCluster(2);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
  Limit(request, LargestPeak(unlimited));
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_EQ(made.plan, unlimited.plan);
}

TEST(BalanceStages, DoesNotFitABudgetOfOneByteLess) {
  BalanceRequest request = HeavyLayers(4);
  request.cluster = UniformCluster(2);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
  Limit(request, LargestPeak(unlimited) - 1);
  EXPECT_THAT(BalanceStages(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                               "needs 400,000,000 bytes, device memory is "
                                               "399,999,999 bytes"));
}

TEST(BalanceStages, PredictsWithinABudgetForTheParametersAlone) {
  BalanceRequest request = HeavyLayers(4);
  for (LayerCost& layer : request.layers) layer.memory.optimizer_bytes = 1000;
  request.cluster = UniformCluster(2);
  request.schedule = ForwardSchedule(8);
  request.predicts = true;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
  Limit(request, LargestPeak(unlimited));
  EXPECT_EQ(LimitOf(request), 200'000'000);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_EQ(made.plan, unlimited.plan);
  Limit(request, LimitOf(request) - 1);
  EXPECT_THAT(BalanceStages(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                               "the smallest number of stages that fits is 4"));
}

TEST(BalanceStages, BalancesAPredictionByItsForwardPasses) {
  BalanceRequest request;
  request.layers.resize(3);
  request.layers[0] = {.forward_ns = 10, .backward_input_ns = 100, .backward_weight_ns = 100};
  request.layers[1] = {.forward_ns = 10, .step_ns = 1000};
  request.layers[2] = {.forward_ns = 30};
  request.cluster = UniformCluster(2);
  request.schedule = ForwardSchedule(8);
  EXPECT_THAT(BalanceStages(request), IsRefused("so it cannot train"));
  request.predicts = true;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 2));
  EXPECT_DOUBLE_EQ(made.stages[1].time_share, 0.6);
}

TEST(BalanceStages, SaysWhatDoesNotFitAndWhatWould) {
  BalanceRequest request = HeavyLayers(6);
  request.cluster = UniformCluster(2);
  Limit(request, 450'000'000);
  EXPECT_THAT(
      BalanceStages(request),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(StartsWith("the model does not fit: stage 0 (layers 0-2) needs 600.0 MB, "
                                "device memory is 450.0 MB; the smallest number of stages that "
                                "fits is 3\n"),
                     ::testing::ContainsRegex("\n     1 +1 +3-5"))));
}

TEST(BalanceStages, SaysThatFewerStagesFit) {
  // The first of two stages holds two micro-batches in flight, a single stage one.
  BalanceRequest request;
  request.layers.resize(2);
  request.layers[0].memory.stash_bytes = 1 << 20;
  request.cluster = UniformCluster(2);
  request.schedule = GeneratedSchedule("1f1b", 2);
  Limit(request, (1 << 20) + 4096);
  EXPECT_THAT(BalanceStages(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                               "the smallest number of stages that fits is 1\n"));
}

TEST(BalanceStages, SaysThatNoNumberOfStagesFits) {
  BalanceRequest request = HeavyLayers(3);
  Limit(request, 100'000'000);
  EXPECT_THAT(BalanceStages(request),
              StatusIs(absl::StatusCode::kResourceExhausted, "no number of stages fits"));
}

// The fastest cut has the whole stash on the middle stage.
TEST(BalanceStages, StaysWithinATightBudgetWithHundredsOfMicroBatches) {
  for (const char* name : {"1f1b", "gpipe"}) {
    SCOPED_TRACE(name);
    BalanceRequest request;
    request.layers.resize(8);
    for (int i = 0; i < 8; ++i) {
      request.layers[i].forward_ns = i == 0 || i == 7 ? 3 : 1;
      request.layers[i].memory.stash_bytes = i >= 2 && i <= 5 ? 1 << 16 : 0;
    }
    request.cluster = UniformCluster(3);
    request.schedule = GeneratedSchedule(name, 512);
    ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
    EXPECT_THAT(unlimited.plan.first_layer, ElementsAre(0, 2, 6));
    Limit(request, LargestPeak(unlimited) - 1);
    ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
    EXPECT_LE(LargestPeak(made), LimitOf(request));
  }
}

// Two devices with two stages each.
BalanceRequest TwoChunks(int layers) {
  BalanceRequest request = HeavyLayers(layers);
  request.cluster = UniformCluster(2);
  request.schedule = GeneratedSchedule("interleaved", 4);
  return request;
}

TEST(BalanceStages, CutsForTheFastestSlowestStageWhereDevicesHaveSeveral) {
  BalanceRequest request = TwoChunks(5);
  request.layers[1].forward_ns = 3000;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 1, 2, 3));
}

// The fastest cut has both wide stages on device 0: the layers without time carry the memory.
TEST(BalanceStages, RepairsACutWhoseStagesDoNotFitTheirDeviceTogether) {
  BalanceRequest request = TwoChunks(8);
  for (int i = 0; i < 8; ++i) {
    const bool is_wide = i % 4 < 3;  // layers 0-2 and 4-6
    request.layers[i].forward_ns = is_wide ? 1000 : 3000;
  }
  ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
  EXPECT_THAT(unlimited.plan.first_layer, ElementsAre(0, 3, 4, 7));
  EXPECT_EQ(LargestPeak(unlimited), 6 * 200'000'000);
  Limit(request, 4 * 200'000'000);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 2, 4, 6));
}

TEST(BalanceStages, NamesTheDeviceAndItsStagesWhereThereAreSeveral) {
  BalanceRequest request = TwoChunks(8);
  Limit(request, 3 * 200'000'000);
  EXPECT_THAT(
      BalanceStages(request),
      StatusIs(absl::StatusCode::kResourceExhausted,
               StartsWith("the model does not fit: device 0 (stages 0, 2 with layers 0-1, 4-5) "
                          "needs 800.0 MB, device memory is 600.0 MB; the smallest number of "
                          "devices that fits is 4\n")));
}

TEST(BalanceStages, NeverReturnsACutThatDoesNotFitTheDevices) {
  std::mt19937 random(3);
  int fitting = 0;
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    const char* const names[] = {"interleaved", "zb-v", "v-min", "looped-bfs"};
    BalanceRequest request = {
        .layers = RandomLayers(random, 4 + static_cast<int>(random() % 4)),
        .ends = RandomEnds(random),
        .cluster = UniformCluster(2),
        .schedule = GeneratedSchedule(names[random() % 4], 2 + 2 * static_cast<int>(random() % 3))};
    if (i % 2 != 0) request.cluster.transfers = schedule::Transfers::kGrouped;
    ASSERT_OK_AND_ASSIGN(const CompiledPlan unlimited, BalanceStages(request));
    Limit(request, LargestPeak(unlimited) * (80 + static_cast<int>(random() % 30)) / 100);
    const auto made = BalanceStages(request);
    if (absl::IsResourceExhausted(made.status())) continue;
    ASSERT_OK(made);
    ++fitting;
    EXPECT_LE(LargestPeak(*made), LimitOf(request));
  }
  EXPECT_GT(fitting, 20);
}

TEST(BalanceStages, GivesAFasterDeviceMoreLayers) {
  BalanceRequest request = HeavyLayers(4);
  request.cluster = UniformCluster(2);
  request.cluster.devices[1].speed = 3;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_THAT(made.plan.first_layer, ElementsAre(0, 1));
}

TEST(BalanceStages, KeepsEachDeviceWithinItsOwnMemory) {
  BalanceRequest request = HeavyLayers(6);
  request.cluster = UniformCluster(3);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan equal, BalanceStages(request));
  EXPECT_THAT(equal.plan.first_layer, ElementsAre(0, 2, 4));
  request.cluster.devices[1].memory_bytes = equal.ranks[1].peak_bytes() / 2;
  ASSERT_OK_AND_ASSIGN(const CompiledPlan made, BalanceStages(request));
  EXPECT_LE(made.ranks[1].peak_bytes(), request.cluster.devices[1].memory_bytes);
  EXPECT_EQ(made.plan.first(2) - made.plan.first(1), 1);
}

TEST(BalanceStages, NamesTheDeviceThatIsTooSmallAmongUnequalOnes) {
  BalanceRequest request = HeavyLayers(3);
  request.cluster = UniformCluster(3);
  request.cluster.devices[1] = {.name = "small.0", .memory_bytes = 100'000'000};
  EXPECT_THAT(BalanceStages(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       StartsWith("the model does not fit: stage 1 (layers 1-1) needs 200.0 MB, "
                                  "the memory of device small.0 is 100.0 MB; use smaller "
                                  "micro-batches or more memory\n")));
}

TEST(BalanceStages, RefusesWhatCannotBe) {
  const Refusal<Change<BalanceRequest>> refusals[] = {
      {[](BalanceRequest& request) { request.cluster = UniformCluster(0); }, "0 devices"},
      {[](BalanceRequest& request) {
         request.cluster = UniformCluster(3);
         request.replication = {.replicas = 2, .gradient_blocks = 2};
       },
       "3 devices cannot be divided among 2 replicas"},
      {[](BalanceRequest& request) { request.cluster = UniformCluster(4); },
       "cannot cut 3 layers into 4 stages"},
      {[](BalanceRequest& request) { request.micro_batch_rows = 0; }, "at least 1"},
      {[](BalanceRequest& request) { Limit(request, -1); }, "memory_bytes is -1"},
      {[](BalanceRequest& request) { request.layers[1].forward_ns = -1; }, "layer 1"},
      {[](BalanceRequest& request) { request.schedule = GeneratedSchedule("gpype", 1); }, "gpype"},
      {[](BalanceRequest& request) { request = TwoChunks(3); },
       "cannot cut 3 layers into 4 stages"},
      // Three micro-batches are no multiple of two ranks.
      {[](BalanceRequest& request) {
         request = TwoChunks(8);
         request.schedule = GeneratedSchedule("interleaved", 3);
       },
       "interleaved"},
  };
  ExpectRefusedChanges(HeavyLayers(3), BalanceStages, refusals);
}

}  // namespace
}  // namespace stagecoach::partition
