#include "partition/search/planner.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/search/best_cut.h"
#include "schedule/generators/generators.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::StatusIs;

// Returns twelve equal layers, whose stash is most of what they need.
PlannerRequest EqualLayers(int devices, int64_t memory_bytes) {
  PlannerRequest request;
  SizedLayers sized = {.micro_batch_rows = 1, .layers = {}};
  for (int i = 0; i < 12; ++i) {
    LayerCost layer = {.name = "layer." + std::to_string(i),
                       .forward_ns = 1000,
                       .backward_input_ns = 1000,
                       .backward_weight_ns = 1000};
    layer.memory = {
        .parameter_bytes = 6400, .input_bytes = 640, .output_bytes = 640, .stash_bytes = 64'000};
    sized.layers.push_back(layer);
  }
  request.profile = {.model = "equal", .sizes = {sized}, .edges = {}};
  request.cluster = UniformCluster(devices, memory_bytes);
  request.batch_rows = 8;
  return request;
}

TEST(FindPlan, SurvivesLayersThatTakeNoTime) {
  PlannerRequest request = EqualLayers(2, 0);
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 0;
  }
  const PlanEvaluation evaluation = FindPlan(request).value();
  EXPECT_EQ(evaluation.objective_ns, 0);
  for (const std::string& change : evaluation.changes) EXPECT_THAT(change, Not(HasSubstr("nan")));
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.forward_ns = 1e15;
  EXPECT_THAT(FindPlan(request), IsRefused("would take the slowest device"));
}

TEST(FindPlan, TakesExactlyTheMemoryThatItPredicts) {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  const PlanEvaluation free = FindPlan(request).value();
  for (int rank = 0; rank < 4; ++rank) {
    request.cluster.devices[static_cast<size_t>(rank)].memory_bytes =
        free.compiled.of(schedule::Rank(rank)).peak_bytes();
  }
  const PlanEvaluation exact = FindPlan(request).value();
  EXPECT_EQ(exact.plan(), free.plan());
  --request.cluster.devices[0].memory_bytes;
  const absl::StatusOr<PlanEvaluation> less = FindPlan(request);
  if (less.ok()) {
    EXPECT_NE(less->plan().first_layer, free.plan().first_layer);
  }
}

// Outputs that pass layers are kept once, not once per layer.
TEST(FindPlan, TakesExactlyTheMemoryOfAGraph) {
  for (const int devices : {1, 2}) {
    PlannerRequest request = EqualLayers(devices, 0);
    request.schedule = "gpipe";
    for (int consumer = 1; consumer < 12; ++consumer)
      request.profile.edges.push_back({0, consumer});
    request.profile.sizes.front().layers.front().memory.output_bytes = 64'000;
    const PlanEvaluation free = FindPlan(request).value();
    int64_t most_bytes = 0;
    for (int rank = 0; rank < devices; ++rank) {
      most_bytes = std::max(most_bytes, free.compiled.of(schedule::Rank(rank)).peak_bytes());
    }
    for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = most_bytes;
    ASSERT_OK_AND_ASSIGN(const PlanEvaluation exact, FindPlan(request));
    EXPECT_OK(CheckFits(exact));
    EXPECT_EQ(exact.objective_ns, free.objective_ns);
  }
}

TEST(FindPlan, KeepsWithinALimitThatSomeDevicesHave) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "gpipe";
  for (const int limited : {0, 1}) {
    request.cluster = UniformCluster(2, 0);
    request.cluster.devices[static_cast<size_t>(limited)].memory_bytes = 1'200'000;
    const PlanEvaluation evaluation = FindPlan(request).value();
    EXPECT_OK(CheckFits(evaluation));
    EXPECT_NE(evaluation.plan().first_layer[1], 6) << "the limit is none";
  }
}

TEST(FindPlan, RecomputesOnlyAsMuchAsMemoryNeeds) {
  PlannerRequest request = EqualLayers(4, 450'000);
  request.schedule = "1f1b";
  request.may_recompute = true;
  EXPECT_FALSE(FindPlan(request).ok());
  for (LayerCost& layer : request.profile.sizes[0].layers) layer.recompute_stash_bytes = 0;
  const PlanEvaluation some = FindPlan(request).value();
  EXPECT_GT(some.plan().recomputed.size(), 0U);
  EXPECT_LT(some.plan().recomputed.size(), 12U);
  for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = 300'000;
  const PlanEvaluation more = FindPlan(request).value();
  EXPECT_GT(more.plan().recomputed.size(), some.plan().recomputed.size());
  EXPECT_GT(more.objective_ns, some.objective_ns);
}

TEST(FindPlan, SaysTheSameEveryTime) {
  PlannerRequest request = EqualLayers(4, 450'000);
  double more_ns = 0;
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.recompute_stash_bytes = 0;
    layer.forward_ns += more_ns++;
  }
  const PlanEvaluation first = FindPlan(request).value();
  const PlanEvaluation second = FindPlan(request).value();
  EXPECT_THAT(first.plan().recomputed, Not(IsEmpty()));  // otherwise the memory is not short
  EXPECT_EQ(first.plan(), second.plan());
  EXPECT_EQ(first.lower_bound_ns, second.lower_bound_ns);
  EXPECT_EQ(first.changes, second.changes);
}

TEST(FindPlan, SaysWhatMoreMemoryWouldChange) {
  const PlannerRequest request = EqualLayers(4, 480'000);
  const PlanEvaluation evaluation = FindPlan(request).value();
  ASSERT_FALSE(evaluation.changes.empty());
  EXPECT_THAT(evaluation.changes.front(),
              AllOf(HasSubstr("with "), HasSubstr(" more on "), HasSubstr("-"), HasSubstr(" %")));
  ASSERT_TRUE(evaluation.runner_up.has_value());
  EXPECT_GE(evaluation.runner_up->objective_ns, evaluation.objective_ns);
  EXPECT_FALSE(evaluation.runner_up_reason.empty());
}

TEST(FindPlan, SaysWhatIsMissingAndWhatWouldFit) {
  PlannerRequest request = EqualLayers(4, 300'000);
  request.schedule = "1f1b";
  const absl::Status status = FindPlan(request).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the model does not fit"), HasSubstr("device 3 needs"),
                             HasSubstr("more than its memory of 300.0 kB"),
                             HasSubstr("it would fit with 169.3 kB more memory"))));
}

// 4 kB of stash per sample and layer. For the larger batch, 2^21 micro-batches of size 8 would fit,
// but a schedule of that many takes gigabytes.
TEST(FindPlan, ProposesOnlyAsManyMicroBatchesAsAreQuicklyTried) {
  PlannerRequest request = EqualLayers(2, 500'000);
  request.schedule = "1f1b";
  request.micro_batches = 4;
  request.profile.sizes.front().micro_batch_rows = int64_t{1} << 22;
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.memory.stash_bytes <<= 18;
  request.batch_rows = int64_t{1} << 24;
  EXPECT_THAT(FindPlan(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                          Not(HasSubstr("micro-batches of 8 rows"))));
  request.batch_rows = int64_t{1} << 10;
  EXPECT_THAT(FindPlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, "128 micro-batches of 8 rows"));
}

// Returns two replicas of two ranks, with four micro-batches each; a message takes 100 ns. The last
// B of rank 0 ends after 5 F (6000 ns) and 5 BW (12,000) and 4 messages; then both replicas of
// stage 0 send 19,200 bytes twice, 3000 ns each time. Rank 1 was done long before.
PlannerRequest TwoReplicas() {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  request.replicas = 2;
  request.cluster.within_host.bytes_per_second = 6.4e9;
  return request;
}

TEST(FindPlan, DealsMicroBatchesToReplicas) {
  const PlanEvaluation evaluation = FindPlan(TwoReplicas()).value();
  EXPECT_EQ(evaluation.simulation.step_ns, 5 * 18'000 + 400 + 2 * 3000);
  EXPECT_EQ(evaluation.objective_ns, 96'400);
  const Plan& plan = evaluation.plan();
  EXPECT_EQ(plan.first_layer, (std::vector<int>{0, 6}));
  EXPECT_EQ(plan.replication, (Replication{2, 2}));
  EXPECT_EQ(plan.micro_batches(), 8);
  EXPECT_EQ(plan.schedule, schedule::Generate("1f1b", {.ranks = 2, .micro_batches = 4}).value());
  EXPECT_EQ(evaluation.stages[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(evaluation.stages[1].devices, (std::vector<int>{2, 3}));
  EXPECT_EQ(evaluation.stages[0].update_ns, 6000);
  EXPECT_EQ(evaluation.choice.ToString(), "1f1b, 8 micro-batches of 1 row, 2 ranks, 2 replicas");
}

// Parameters and one sum of gradients, or two; and half of a sum to receive.
TEST(FindPlan, CountsTheMemoryOfReplicasAndGradientBlocks) {
  PlannerRequest request = TwoReplicas();
  constexpr int64_t kStageBytes = 6 * 6400;
  const auto training_of = [](const PlanEvaluation& evaluation) {
    return evaluation.compiled.of(schedule::Rank(0)).training;
  };
  const PlanEvaluation two = FindPlan(request).value();
  EXPECT_EQ(training_of(two).resident_bytes, 2 * kStageBytes + kStageBytes / 2);
  request.gradient_blocks = 4;
  const PlanEvaluation four = FindPlan(request).value();
  EXPECT_EQ(four.plan().replication, (Replication{2, 4}));
  EXPECT_EQ(training_of(four).resident_bytes, 3 * kStageBytes + kStageBytes / 2);
  EXPECT_EQ(four.objective_ns, two.objective_ns);
  // Two sums each: of blocks 0, 1 and 2, and of 3, 4 and 5, of which each device sends a half.
  request.gradient_blocks = 6;
  request.batch_rows = 6;
  const PlanEvaluation six = FindPlan(request).value();
  EXPECT_EQ(training_of(six).resident_bytes, (1 + 3) * kStageBytes + 2 * kStageBytes / 2);
  EXPECT_EQ(six.stages[0].update_ns, 6000 + 3000);
  // A single replica that performs as many micro-batches has no area to receive in.
  request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.batch_rows = 4;
  const PlanEvaluation one = FindPlan(request).value();
  EXPECT_EQ(training_of(one).resident_bytes, 2 * kStageBytes);
  EXPECT_EQ(training_of(one).dynamic_bytes, training_of(two).dynamic_bytes);
}

// Each updates half of its six layers: within the REDUCE, or after a norm or ties and before it
// distributes what it has updated.
TEST(FindPlan, ShardsTheOptimizer) {
  PlannerRequest request = TwoReplicas();
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.step_ns = 100;
    layer.memory.optimizer_bytes = 2 * layer.memory.parameter_bytes;
  }
  constexpr int64_t kUnshardedNs = 96'400;  // without the update
  constexpr int64_t kStageBytes = 6 * 6400;
  const auto resident_of = [](const PlanEvaluation& evaluation) {
    return evaluation.compiled.of(schedule::Rank(0)).training.resident_bytes;
  };
  const PlanEvaluation whole = FindPlan(request).value();
  EXPECT_EQ(whole.objective_ns, kUnshardedNs + 600);
  request.shards_optimizer = true;
  const PlanEvaluation sharded = FindPlan(request).value();
  EXPECT_EQ(sharded.plan().replication, (Replication{2, 2, true}));
  EXPECT_EQ(sharded.objective_ns, kUnshardedNs + 300);
  EXPECT_EQ(sharded.stages[0].update_ns, 6000 + 300);
  EXPECT_EQ(resident_of(whole) - resident_of(sharded), kStageBytes);
  for (const schedule::CollectiveMemory& collectives :
       {schedule::CollectiveMemory{.norm_bytes = 8 * 12}, schedule::CollectiveMemory{.ties = 1}}) {
    request.profile.collectives = collectives;
    EXPECT_EQ(FindPlan(request).value().objective_ns, kUnshardedNs + 300 + 3000);
  }
  // One replica has nothing to shard; if their number is open, others are considered.
  request.replicas = 1;
  EXPECT_THAT(FindPlan(request), IsRefused("a sharded optimizer for 1 replica"));
  request.replicas.reset();
  EXPECT_OK(FindPlan(request));
}

TEST(FindPlan, RefusesToShareWhatOnlyOneReplicaCanHave) {
  for (const bool shards : {true, false}) {
    PlannerRequest request = TwoReplicas();
    request.replicas.reset();
    request.shards_optimizer = shards;
    if (!shards) request.reduction = ReductionKind::kRing;
    const auto refused = IsRefused("1 replica");
    request.given = schedule::Generate("1f1b", {.ranks = 4, .micro_batches = 8}).value();
    EXPECT_THAT(FindPlan(request), refused);
    request.given.reset();
    EXPECT_OK(FindPlan(request));
    request.cluster = UniformCluster(1);
    EXPECT_THAT(FindPlan(request), refused);
  }
}

// A ring takes the time of a tree, without its memory.
TEST(FindPlan, SumsInARing) {
  PlannerRequest request = TwoReplicas();
  const PlanEvaluation tree = FindPlan(request).value();
  request.reduction = ReductionKind::kRing;
  const PlanEvaluation ring = FindPlan(request).value();
  EXPECT_EQ(ring.plan().replication, (Replication{2, 2, false, ReductionKind::kRing}));
  EXPECT_EQ(ring.objective_ns, tree.objective_ns);
  const auto resident_of = [](const PlanEvaluation& evaluation) {
    return evaluation.compiled.of(schedule::Rank(0)).training.resident_bytes;
  };
  EXPECT_LT(resident_of(ring), resident_of(tree));
  request.replicas = 1;
  EXPECT_THAT(FindPlan(request), IsRefused("a ring of 1 replica"));
  request.replicas.reset();
  EXPECT_OK(FindPlan(request));
}

int64_t FullestPeak(const PlanEvaluation& evaluation) {
  int64_t most_bytes = 0;
  for (const RankReport& rank : evaluation.compiled.ranks) {
    most_bytes = std::max(most_bytes, rank.peak_bytes());
  }
  return most_bytes;
}

// A plan that needs exactly the memory fits; with a byte less it does not.
TEST(FindPlan, FitsTheExactMemoryOfReplicas) {
  PlannerRequest request = TwoReplicas();
  request.gradient_blocks = 8;
  const PlanEvaluation free = FindPlan(request).value();
  for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = FullestPeak(free);
  EXPECT_EQ(FindPlan(request).value().plan(), free.plan());
  --request.cluster.devices[1].memory_bytes;
  const absl::StatusOr<PlanEvaluation> less = FindPlan(request);
  if (less.ok()) {
    EXPECT_NE(less->plan().first_layer, free.plan().first_layer);
  }
}

TEST(FindPlan, SearchesTheNumberOfReplicas) {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  request.replicas.reset();
  const PlanEvaluation free = FindPlan(request).value();
  EXPECT_EQ(free.plan().replicas(), 4);  // no bubble, and no cost
  EXPECT_EQ(free.objective_ns, 12 * 3000 * 2);
  EXPECT_EQ(free.gap(), 0);
  request.cluster.within_host.bytes_per_second = 1e6;
  EXPECT_EQ(FindPlan(request).value().plan().replicas(), 1);
  // Only replicas with whole blocks are considered.
  request.cluster.within_host = {};
  request.gradient_blocks = 2;
  EXPECT_EQ(FindPlan(request).value().plan().replication, (Replication{2, 2}));
}

TEST(FindPlan, TriesAllNumbersOfReplicasThatDivideTheDevices) {
  PlannerRequest request = EqualLayers(6, 0);
  request.schedule = "1f1b";
  request.replicas.reset();
  request.batch_rows = 12;
  const PlanEvaluation free = FindPlan(request).value();
  EXPECT_EQ(free.plan().replication, (Replication{6, 6}));
  EXPECT_EQ(free.objective_ns, 12 * 3000 * 2);
  request.gradient_blocks = 3;
  EXPECT_EQ(FindPlan(request).value().plan().replication, (Replication{3, 3}));
  request.gradient_blocks = 12;
  EXPECT_EQ(FindPlan(request).value().plan().replication, (Replication{6, 12}));
}

// A step that overlaps others takes as long as its busiest resource, or as all of them together.
TEST(FindPlan, ABottleneckCanBeTheSumOfGradients) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.replicas = 2;
  request.objective = PlanObjective::kBottleneck;
  const double compute_ns = 4 * 12 * 3000.0;
  request.cluster.within_host.bytes_per_second = 76'800e9 / 100'000;
  EXPECT_EQ(FindPlan(request).value().objective_ns, compute_ns);
  request.cluster.overlaps_messages = false;
  EXPECT_EQ(FindPlan(request).value().objective_ns, compute_ns + 100'000);
  request.cluster.overlaps_messages = true;
  request.cluster.within_host.bytes_per_second = 76'800e9 / 200'000;
  EXPECT_EQ(FindPlan(request).value().objective_ns, 200'000);
}

TEST(FindPlan, FollowsTheSpeedsOfDevices) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.cluster.devices[1].speed = 2.0;
  const PlanEvaluation evaluation = FindPlan(request).value();
  EXPECT_EQ(evaluation.plan().first_layer, (std::vector<int>{0, 4}));
}

// The bound divides all work by the total speed, of which these plans leave little unused.
TEST(FindPlan, BoundsUnequalRanksByTheirSpeeds) {
  PlannerRequest request = EqualLayers(2, 0);
  request.cluster.devices[0].speed = 0.1;
  request.batch_rows = 64;
  const PlanEvaluation speeds = FindPlan(request).value();
  const double work_ns = 12 * 3000.0 * 64;
  EXPECT_GT(speeds.lower_bound_ns, 0.99 * work_ns / 1.1);
}

// What was not requested, such as other schedules, is not mentioned.
TEST(FindPlan, RefusesWhatCannotBe) {
  using ::testing::Eq;
  const Refusal<Change<PlannerRequest>> refusals[] = {
      {[](auto& request) { request.batch_rows = 0; }, ""},
      {[](auto& request) { request.micro_batches = 3; }, "does not divide"},
      {[](auto& request) { request.cluster = UniformCluster(13); },
       "cannot cut 12 layers into 13 stages"},
      {[](auto& request) { request.replicas = 3; },
       Eq("3 replicas of every stage do not divide 4 devices")},
      {[](auto& request) { request.cluster = UniformCluster(6), request.replicas = 3; },
       Eq("8 micro-batches cannot be divided evenly into 3 gradient blocks, one for each replica: "
          "use a multiple of 3")},
      {[](auto& request) { request.replicas = 4, request.gradient_blocks = 2; },
       "2 gradient blocks for 4 replicas"},
      {[](auto& request) {
         request.cluster = UniformCluster(6);
         request.replicas = 3, request.gradient_blocks = 4;
       },
       Eq("4 gradient blocks for 3 replicas: use a multiple of the replicas, so that each has "
          "whole blocks")},
      {[](auto& request) { request.replicas = 4, request.micro_batches = 2; },
       Eq("2 micro-batches cannot be divided evenly into 4 gradient blocks, one for each replica: "
          "use a multiple of 4")},
      {[](auto& request) { request.schedule = "zb-v", request.chunks = 3; },
       "zb-v has 2 stages per device"},
      {[](auto& request) { request.chunks = 4; },
       Eq("cannot cut 12 layers into 16 stages: use at most 12 stages")},
      {[](auto& request) { request.schedule = "gpipe", request.chunks = 4; },
       Eq("schedule gpipe has 1 stage per device, not 4")},
      {[](auto& request) {
         request.cluster = UniformCluster(2);
         request.profile.sizes.front().layers.resize(1);
       },
       Eq("cannot cut 1 layer into 2 stages: use at most 1 stage")},
      {[](auto& request) { request.schedule = "1f2b"; }, "1f1b", absl::StatusCode::kNotFound},
  };
  ExpectRefusedChanges(
      EqualLayers(4, 0), [](const PlannerRequest& request) { return FindPlan(request); }, refusals);
}

// Names the first remedy that helps, and no more of it than is needed.
TEST(FindPlan, SaysWhatWouldMakeAPlanFit) {
  const auto expect = [](PlannerRequest request, int64_t memory_bytes, const char* remedy) {
    for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = memory_bytes;
    EXPECT_THAT(FindPlan(request), StatusIs(absl::StatusCode::kResourceExhausted, remedy));
  };
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.memory.parameter_bytes = 1'000'000;
  }
  PlannerRequest of_three = request;
  of_three.cluster = UniformCluster(3);
  expect(request, FullestPeak(FindPlan(of_three).value()), "with 3 devices");
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.recompute_stash_bytes = 0;
  PlannerRequest recomputed = request;
  recomputed.recomputes_all = true;
  request.may_recompute = false;
  expect(request, FullestPeak(FindPlan(recomputed).value()), "with recomputing layers, or with");
}

TEST(FindPlan, SaysHowTheRanksOfAGivenScheduleTakeTheDevices) {
  PlannerRequest request = EqualLayers(8, 0);
  request.given = schedule::Generate("1f1b", {.ranks = 4, .micro_batches = 8}).value();
  request.replicas = 1;
  EXPECT_THAT(
      FindPlan(request),
      IsRefused(::testing::Eq("the schedule is for 4 ranks: with 8 devices each rank has 2, not 1; "
                              "ask for 2 replicas of every stage, or use 4 devices")));
  request.batch_rows = 16;
  request.replicas = 2;
  EXPECT_EQ(FindPlan(request).value().plan().micro_batches(), 16);
  request.micro_batches = 8;
  EXPECT_THAT(FindPlan(request),
              IsRefused(::testing::Eq("8 micro-batches are asked for, but the schedule is for 8, "
                                      "and there are 2 replicas: ask for 16, or leave it open")));
  request.micro_batches.reset();
  request.cluster = UniformCluster(12);
  request.batch_rows = 24;
  request.replicas.reset();
  EXPECT_EQ(FindPlan(request).value().plan().replication, (Replication{3, 3}));
  request.replicas = 2;
  request.cluster = UniformCluster(6);
  for (const bool has_replicas : {true, false}) {
    if (!has_replicas) request.replicas.reset();
    EXPECT_THAT(FindPlan(request),
                IsRefused(::testing::Eq("the schedule is for 4 ranks: 6 devices cannot be divided "
                                        "evenly among them; use a multiple of 4")));
  }
}

// Holds nearly always; here, at micro-batch sizes of one and two.
TEST(FindPlan, IsNoSlowerWithMoreMemoryOrAWiderRequest) {
  PlannerRequest request = EqualLayers(4, 0);
  request.profile.sizes.push_back(request.profile.sizes.front());
  SizedLayers& two = request.profile.sizes.back();
  two.micro_batch_rows = 2;
  for (LayerCost& layer : two.layers) {
    layer.forward_ns *= 1.8;
    layer.backward_input_ns *= 1.8;
    layer.backward_weight_ns *= 1.8;
    layer.memory.stash_bytes *= 2;
  }
  double before_ns = std::numeric_limits<double>::infinity();
  for (const int64_t memory_bytes : {500'000, 600'000, 900'000, 0}) {
    request.cluster = UniformCluster(4, memory_bytes);
    request.micro_batches.reset();
    const PlanEvaluation evaluation = FindPlan(request).value();
    EXPECT_LE(evaluation.objective_ns, before_ns) << memory_bytes;
    before_ns = evaluation.objective_ns;
    request.micro_batches = 8;
    const absl::StatusOr<PlanEvaluation> narrower = FindPlan(request);
    if (narrower.ok()) {
      EXPECT_LE(before_ns, narrower->objective_ns) << memory_bytes;
    }
  }
}

TEST(CountCuts, IsTheBinomialCoefficient) {
  EXPECT_EQ(CountCuts(5, 1), 1);
  EXPECT_EQ(CountCuts(5, 5), 1);
  EXPECT_EQ(CountCuts(5, 3), 6);
  EXPECT_EQ(CountCuts(20, 4), 969);
  EXPECT_EQ(CountCuts(10'000, 1'024), kMaxEnumeratedCuts + 1);
}

}  // namespace
}  // namespace stagecoach::partition
