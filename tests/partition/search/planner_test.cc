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
#include "schedule/generators.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::StatusIs;

// Twelve equal layers, whose stash is most of what they need.
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

TEST(PlanJointly, SurvivesLayersThatTakeNoTime) {
  PlannerRequest request = EqualLayers(2, 0);
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 0;
  }
  const Receipt receipt = PlanJointly(request).value();
  EXPECT_EQ(receipt.objective_ns, 0);
  for (const std::string& change : receipt.changes) EXPECT_THAT(change, Not(HasSubstr("nan")));
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.forward_ns = 1e15;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("would take the slowest device")));
}

TEST(PlanJointly, TakesExactlyTheMemoryThatItPredicts) {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  const Receipt free = PlanJointly(request).value();
  for (int rank = 0; rank < 4; ++rank) {
    request.cluster.devices[static_cast<size_t>(rank)].memory_bytes =
        free.report.of(schedule::Rank(rank)).peak_bytes();
  }
  const Receipt exact = PlanJointly(request).value();
  EXPECT_EQ(exact.plan, free.plan);
  --request.cluster.devices[0].memory_bytes;
  const absl::StatusOr<Receipt> less = PlanJointly(request);
  if (less.ok()) {
    EXPECT_NE(less->plan.first_layer, free.plan.first_layer);
  }
}

// What passes layers is kept once, not once for each of them.
TEST(PlanJointly, TakesExactlyTheMemoryOfAGraph) {
  for (const int devices : {1, 2}) {
    PlannerRequest request = EqualLayers(devices, 0);
    request.schedule = "gpipe";
    for (int consumer = 1; consumer < 12; ++consumer)
      request.profile.edges.push_back({0, consumer});
    request.profile.sizes.front().layers.front().memory.output_bytes = 64'000;
    const Receipt free = PlanJointly(request).value();
    int64_t most_bytes = 0;
    for (int rank = 0; rank < devices; ++rank) {
      most_bytes = std::max(most_bytes, free.report.of(schedule::Rank(rank)).peak_bytes());
    }
    for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = most_bytes;
    ASSERT_OK_AND_ASSIGN(const Receipt exact, PlanJointly(request));
    EXPECT_OK(CheckFits(exact));
    EXPECT_EQ(exact.objective_ns, free.objective_ns);
  }
}

TEST(PlanJointly, KeepsWithinALimitThatSomeDevicesHave) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "gpipe";
  for (const int limited : {0, 1}) {
    request.cluster = UniformCluster(2, 0);
    request.cluster.devices[static_cast<size_t>(limited)].memory_bytes = 1'200'000;
    const Receipt receipt = PlanJointly(request).value();
    EXPECT_OK(CheckFits(receipt));
    EXPECT_NE(receipt.plan.first_layer[1], 6) << "the limit is none";
  }
}

TEST(PlanJointly, RecomputesOnlyAsMuchAsMemoryNeeds) {
  PlannerRequest request = EqualLayers(4, 450'000);
  request.schedule = "1f1b";
  request.may_recompute = true;
  EXPECT_FALSE(PlanJointly(request).ok());
  for (LayerCost& layer : request.profile.sizes[0].layers) layer.recompute_stash_bytes = 0;
  const Receipt some = PlanJointly(request).value();
  EXPECT_GT(some.plan.recomputed.size(), 0U);
  EXPECT_LT(some.plan.recomputed.size(), 12U);
  for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = 300'000;
  const Receipt more = PlanJointly(request).value();
  EXPECT_GT(more.plan.recomputed.size(), some.plan.recomputed.size());
  EXPECT_GT(more.objective_ns, some.objective_ns);
}

TEST(PlanJointly, SaysTheSameEveryTime) {
  PlannerRequest request = EqualLayers(4, 450'000);
  double more_ns = 0;
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.recompute_stash_bytes = 0;
    layer.forward_ns += more_ns++;
  }
  const Receipt first = PlanJointly(request).value();
  const Receipt second = PlanJointly(request).value();
  EXPECT_THAT(first.plan.recomputed, Not(IsEmpty()));  // or the memory is not short
  EXPECT_EQ(first.plan, second.plan);
  EXPECT_EQ(first.lower_bound_ns, second.lower_bound_ns);
  EXPECT_EQ(first.changes, second.changes);
}

TEST(PlanJointly, SaysWhatMoreMemoryWouldChange) {
  const PlannerRequest request = EqualLayers(4, 480'000);
  const Receipt receipt = PlanJointly(request).value();
  ASSERT_FALSE(receipt.changes.empty());
  EXPECT_THAT(receipt.changes.front(),
              AllOf(HasSubstr("with "), HasSubstr(" more on "), HasSubstr("-"), HasSubstr(" %")));
  ASSERT_TRUE(receipt.runner_up.has_value());
  EXPECT_GE(receipt.runner_up->objective_ns, receipt.objective_ns);
  EXPECT_FALSE(receipt.runner_up_reason.empty());
}

TEST(PlanJointly, SaysWhatIsMissingAndWhatWouldFit) {
  PlannerRequest request = EqualLayers(4, 300'000);
  request.schedule = "1f1b";
  const absl::Status status = PlanJointly(request).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the model does not fit"), HasSubstr("device 3 needs"),
                             HasSubstr("more than its memory of 300.0 kB"),
                             HasSubstr("it would fit with 169.3 kB more memory"))));
}

// 4 kB of stash a row and layer. Of the larger batch, 2^21 micro-batches of 8 rows would fit, but a
// schedule of so many takes gigabytes.
TEST(PlanJointly, ProposesOnlyAsManyMicroBatchesAsAreQuicklyTried) {
  PlannerRequest request = EqualLayers(2, 500'000);
  request.schedule = "1f1b";
  request.micro_batches = 4;
  request.profile.sizes.front().micro_batch_rows = int64_t{1} << 22;
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.memory.stash_bytes <<= 18;
  request.batch_rows = int64_t{1} << 24;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                             Not(HasSubstr("micro-batches of 8 rows"))));
  request.batch_rows = int64_t{1} << 10;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("128 micro-batches of 8 rows")));
}

// Two replicas of two ranks, with four micro-batches each; a message takes 100 ns. The last B of
// rank 0 ends after 5 F (6000 ns) and 5 BW (12,000) and 4 messages; then both replicas of stage 0
// send 19,200 bytes twice, 3000 ns each time. Rank 1 was done long before.
PlannerRequest TwoReplicas() {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  request.replicas = 2;
  request.cluster.within_host.bytes_per_second = 6.4e9;
  return request;
}

TEST(PlanJointly, DealsMicroBatchesToReplicas) {
  const Receipt receipt = PlanJointly(TwoReplicas()).value();
  EXPECT_EQ(receipt.simulation.step_ns, 5 * 18'000 + 400 + 2 * 3000);
  EXPECT_EQ(receipt.objective_ns, 96'400);
  const Plan& plan = receipt.plan;
  EXPECT_EQ(plan.first_layer, (std::vector<int>{0, 6}));
  EXPECT_EQ(plan.replication, (Replication{2, 2}));
  EXPECT_EQ(plan.micro_batches(), 8);
  EXPECT_EQ(plan.schedule, schedule::Generate("1f1b", {.ranks = 2, .micro_batches = 4}).value());
  EXPECT_EQ(receipt.stages[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(receipt.stages[1].devices, (std::vector<int>{2, 3}));
  EXPECT_EQ(receipt.stages[0].update_ns, 6000);
  EXPECT_EQ(receipt.choice.ToString(), "1f1b, 8 micro-batches of 1 row, 2 ranks, 2 replicas");
}

// Parameters and one sum of gradients, or two; and half of a sum to receive.
TEST(PlanJointly, CountsTheMemoryOfReplicasAndGradientBlocks) {
  PlannerRequest request = TwoReplicas();
  constexpr int64_t kStageBytes = 6 * 6400;
  const auto training_of = [](const Receipt& receipt) {
    return receipt.report.of(schedule::Rank(0)).training;
  };
  const Receipt two = PlanJointly(request).value();
  EXPECT_EQ(training_of(two).resident_bytes, 2 * kStageBytes + kStageBytes / 2);
  request.gradient_blocks = 4;
  const Receipt four = PlanJointly(request).value();
  EXPECT_EQ(four.plan.replication, (Replication{2, 4}));
  EXPECT_EQ(training_of(four).resident_bytes, 3 * kStageBytes + kStageBytes / 2);
  EXPECT_EQ(four.objective_ns, two.objective_ns);
  // Of one replica that performs as many micro-batches, there is no area to receive in.
  request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.batch_rows = 4;
  const Receipt one = PlanJointly(request).value();
  EXPECT_EQ(training_of(one).resident_bytes, 2 * kStageBytes);
  EXPECT_EQ(training_of(one).dynamic_bytes, training_of(two).dynamic_bytes);
}

// Each updates half of its six layers: within the REDUCE, or after a norm or ties and before it
// hands out what it has updated.
TEST(PlanJointly, ShardsTheOptimizer) {
  PlannerRequest request = TwoReplicas();
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.step_ns = 100;
    layer.memory.optimizer_bytes = 2 * layer.memory.parameter_bytes;
  }
  constexpr int64_t kUnshardedNs = 96'400;  // but for the update
  constexpr int64_t kStageBytes = 6 * 6400;
  const auto resident_of = [](const Receipt& receipt) {
    return receipt.report.of(schedule::Rank(0)).training.resident_bytes;
  };
  const Receipt whole = PlanJointly(request).value();
  EXPECT_EQ(whole.objective_ns, kUnshardedNs + 600);
  request.shards_optimizer = true;
  const Receipt sharded = PlanJointly(request).value();
  EXPECT_EQ(sharded.plan.replication, (Replication{2, 2, true}));
  EXPECT_EQ(sharded.objective_ns, kUnshardedNs + 300);
  EXPECT_EQ(sharded.stages[0].update_ns, 6000 + 300);
  EXPECT_EQ(resident_of(whole) - resident_of(sharded), kStageBytes);
  for (const schedule::CollectiveMemory& collectives :
       {schedule::CollectiveMemory{.norm_bytes = 8 * 12}, schedule::CollectiveMemory{.ties = 1}}) {
    request.profile.collectives = collectives;
    EXPECT_EQ(PlanJointly(request).value().objective_ns, kUnshardedNs + 300 + 3000);
  }
  // One replica has nothing to share; where their number is open, others are considered.
  request.replicas = 1;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("a sharded optimizer for 1 replica")));
  request.replicas.reset();
  EXPECT_OK(PlanJointly(request));
}

TEST(PlanJointly, RefusesToShareWhatOnlyOneReplicaCanHave) {
  for (const bool shards : {true, false}) {
    PlannerRequest request = TwoReplicas();
    request.replicas.reset();
    request.shards_optimizer = shards;
    if (!shards) request.reduction = ReductionKind::kRing;
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 replica"));
    request.given = schedule::Generate("1f1b", {.ranks = 4, .micro_batches = 8}).value();
    EXPECT_THAT(PlanJointly(request), refused);
    request.given.reset();
    EXPECT_OK(PlanJointly(request));
    request.cluster = UniformCluster(3);
    EXPECT_THAT(PlanJointly(request), refused);
  }
}

// In the time of a tree, without its memory.
TEST(PlanJointly, SumsInARing) {
  PlannerRequest request = TwoReplicas();
  const Receipt tree = PlanJointly(request).value();
  request.reduction = ReductionKind::kRing;
  const Receipt ring = PlanJointly(request).value();
  EXPECT_EQ(ring.plan.replication, (Replication{2, 2, false, ReductionKind::kRing}));
  EXPECT_EQ(ring.objective_ns, tree.objective_ns);
  const auto resident_of = [](const Receipt& receipt) {
    return receipt.report.of(schedule::Rank(0)).training.resident_bytes;
  };
  EXPECT_LT(resident_of(ring), resident_of(tree));
  request.replicas = 1;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a ring of 1 replica")));
  request.replicas.reset();
  EXPECT_OK(PlanJointly(request));
}

int64_t FullestPeak(const Receipt& receipt) {
  int64_t most_bytes = 0;
  for (const RankReport& rank : receipt.report.ranks) {
    most_bytes = std::max(most_bytes, rank.peak_bytes());
  }
  return most_bytes;
}

// What fits to the byte does, and a byte less does not.
TEST(PlanJointly, FitsTheExactMemoryOfReplicas) {
  PlannerRequest request = TwoReplicas();
  request.gradient_blocks = 8;
  const Receipt free = PlanJointly(request).value();
  for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = FullestPeak(free);
  EXPECT_EQ(PlanJointly(request).value().plan, free.plan);
  --request.cluster.devices[1].memory_bytes;
  const absl::StatusOr<Receipt> less = PlanJointly(request);
  if (less.ok()) {
    EXPECT_NE(less->plan.first_layer, free.plan.first_layer);
  }
}

TEST(PlanJointly, SearchesTheNumberOfReplicas) {
  PlannerRequest request = EqualLayers(4, 0);
  request.schedule = "1f1b";
  request.replicas.reset();
  const Receipt free = PlanJointly(request).value();
  EXPECT_EQ(free.plan.replicas(), 4);  // no bubble, and nothing to pay for it
  EXPECT_EQ(free.objective_ns, 12 * 3000 * 2);
  EXPECT_EQ(free.gap(), 0);
  request.cluster.within_host.bytes_per_second = 1e6;
  EXPECT_EQ(PlanJointly(request).value().plan.replicas(), 1);
  // Only those that have whole blocks.
  request.cluster.within_host = {};
  request.gradient_blocks = 2;
  EXPECT_EQ(PlanJointly(request).value().plan.replication, (Replication{2, 2}));
}

// A step that overlaps others takes as long as its busiest resource, or as all of them together.
TEST(PlanJointly, ABottleneckCanBeTheSumOfGradients) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.replicas = 2;
  request.objective = PlanObjective::kBottleneck;
  const double compute_ns = 4 * 12 * 3000.0;
  request.cluster.within_host.bytes_per_second = 76'800e9 / 100'000;
  EXPECT_EQ(PlanJointly(request).value().objective_ns, compute_ns);
  request.cluster.overlaps_messages = false;
  EXPECT_EQ(PlanJointly(request).value().objective_ns, compute_ns + 100'000);
  request.cluster.overlaps_messages = true;
  request.cluster.within_host.bytes_per_second = 76'800e9 / 200'000;
  EXPECT_EQ(PlanJointly(request).value().objective_ns, 200'000);
}

TEST(PlanJointly, FollowsTheSpeedsOfDevices) {
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  request.cluster.devices[1].speed = 2.0;
  const Receipt receipt = PlanJointly(request).value();
  EXPECT_EQ(receipt.plan.first_layer, (std::vector<int>{0, 4}));
}

// The bound is all work at all speed, and these plans leave little of that unused.
TEST(PlanJointly, BoundsUnequalRanksByTheirSpeeds) {
  PlannerRequest request = EqualLayers(2, 0);
  request.cluster.devices[0].speed = 0.1;
  request.batch_rows = 64;
  const Receipt speeds = PlanJointly(request).value();
  const double work_ns = 12 * 3000.0 * 64;
  EXPECT_GT(speeds.lower_bound_ns, 0.99 * work_ns / 1.1);
}

TEST(PlanJointly, RefusesWhatCannotBe) {
  PlannerRequest request = EqualLayers(4, 0);
  request.batch_rows = 0;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request = EqualLayers(4, 0);
  request.micro_batches = 3;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not divide")));
  request = EqualLayers(13, 0);
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("cannot cut 12 layers into 13 stages")));
  request = EqualLayers(4, 0);
  request.replicas = 3;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "3 replicas of every stage do not divide 4 devices"));
  request = EqualLayers(6, 0);
  request.replicas = 3;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("3 replicas: must be a power of two")));
  request = EqualLayers(4, 0);
  request.replicas = 4;
  request.gradient_blocks = 2;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("2 gradient blocks for 4 replicas")));
  request.gradient_blocks.reset();
  request.micro_batches = 2;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "2 micro-batches cannot be divided evenly into 4 gradient blocks, one for "
                       "each replica: use a multiple of 4"));
  request = EqualLayers(4, 0);
  request.schedule = "zb-v";
  request.chunks = 3;
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("zb-v has 2 stages per device")));
  request = EqualLayers(4, 0);
  request.schedule = "1f2b";
  EXPECT_FALSE(PlanJointly(request).ok());
}

// The first that helps, and no more of it than is needed.
TEST(PlanJointly, SaysWhatWouldMakeAPlanFit) {
  const auto expect = [](PlannerRequest request, int64_t memory_bytes, const char* remedy) {
    for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = memory_bytes;
    EXPECT_THAT(PlanJointly(request),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(remedy)));
  };
  PlannerRequest request = EqualLayers(2, 0);
  request.schedule = "1f1b";
  for (LayerCost& layer : request.profile.sizes.front().layers) {
    layer.memory.parameter_bytes = 1'000'000;
  }
  PlannerRequest of_three = request;
  of_three.cluster = UniformCluster(3);
  expect(request, FullestPeak(PlanJointly(of_three).value()), "with 3 devices");
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.recompute_stash_bytes = 0;
  PlannerRequest recomputed = request;
  recomputed.recomputes_all = true;
  request.may_recompute = false;
  expect(request, FullestPeak(PlanJointly(recomputed).value()), "with recomputing layers, or with");
}

// Schedules that were not asked for are not mentioned.
TEST(PlanJointly, SaysWhySoManyStagesCannotBe) {
  PlannerRequest request = EqualLayers(4, 0);
  request.chunks = 4;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "cannot cut 12 layers into 16 stages: use at most 12 stages"));
  request.schedule = "gpipe";
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "schedule gpipe has 1 stage per device, not 4"));
  request = EqualLayers(2, 0);
  request.profile.sizes.front().layers.resize(1);
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "cannot cut 1 layer into 2 stages: use at most 1 stage"));
}

TEST(PlanJointly, SaysHowTheRanksOfAGivenScheduleTakeTheDevices) {
  PlannerRequest request = EqualLayers(8, 0);
  request.given = schedule::Generate("1f1b", {.ranks = 4, .micro_batches = 8}).value();
  request.replicas = 1;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the schedule is for 4 ranks: with 8 devices each rank has 2, not 1; ask "
                       "for 2 replicas of every stage, or use 4 devices"));
  request.batch_rows = 16;
  request.replicas = 2;
  EXPECT_EQ(PlanJointly(request).value().plan.micro_batches(), 16);
  request.micro_batches = 8;
  EXPECT_THAT(PlanJointly(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "8 micro-batches are asked for, but the schedule is for 8, and there are 2 "
                       "replicas: ask for 16, or leave it open"));
  request.micro_batches.reset();
  request.cluster = UniformCluster(12);
  request.batch_rows = 24;
  request.replicas.reset();
  EXPECT_THAT(PlanJointly(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("3 replicas: must be a power of two")));
  request.replicas = 2;
  request.cluster = UniformCluster(6);
  for (const bool has_replicas : {true, false}) {
    if (!has_replicas) request.replicas.reset();
    EXPECT_THAT(PlanJointly(request),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "the schedule is for 4 ranks: 6 devices cannot be divided evenly among "
                         "them; use a multiple of 4"));
  }
}

// Nearly always; here, at micro-batches of one row and of two.
TEST(PlanJointly, IsNoSlowerWithMoreMemoryOrAWiderRequest) {
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
    const Receipt receipt = PlanJointly(request).value();
    EXPECT_LE(receipt.objective_ns, before_ns) << memory_bytes;
    before_ns = receipt.objective_ns;
    request.micro_batches = 8;
    const absl::StatusOr<Receipt> narrower = PlanJointly(request);
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
