#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNoPlan = std::numeric_limits<double>::infinity();

// Returns two hosts of two devices.
Cluster FourDevices(int64_t memory_bytes) {
  Cluster cluster = UniformCluster(4, memory_bytes);
  cluster.devices[2].host = cluster.devices[3].host = 1;
  cluster.within_host = {.latency_ns = 100, .bytes_per_second = 20e9};
  cluster.between_hosts = {.latency_ns = 400, .bytes_per_second = 4e9};
  return cluster;
}

TransformerDescription OpenDescription() {
  return {.transformer = {.layers = 3,
                          .hidden = 64,
                          .heads = 8,
                          .sequence = 64,
                          .vocabulary = 100,
                          .micro_batch_rows = {1, 2},
                          .device_teraflops = 1,
                          .device_multiprocessors = 1,
                          .memory_gigabytes_per_second = 100},
          .attentions = {Attention::kStored, Attention::kRecomputed},
          .tensor_parallel = {1, 2}};
}

// The first layer keeps much of each micro-batch in flight: with four devices in a row too much.
TEST(PlanOptions, LeaveDevicesOutWhereAllOfThemHaveNoPlan) {
  PlannerRequest request;
  SizedLayers layers = {.micro_batch_rows = 1};
  for (int i = 0; i < 4; ++i) {
    layers.layers.push_back({.name = absl::StrCat("l", i),
                             .forward_ns = 1e6,
                             .backward_input_ns = 2e6,
                             .memory = {.stash_bytes = i == 0 ? 100'000 : 1'000}});
  }
  request.profile = {.sizes = {layers}};
  request.cluster = UniformCluster(4, 250'000);
  request.batch_rows = request.micro_batches.emplace(8);
  request.schedule = "1f1b";
  const ModelOption option = {.profile = request.profile, .cluster = request.cluster};
  EXPECT_THAT(FindPlan(request, absl::MakeConstSpan(&option, 1)),
              testing::StatusIs(absl::StatusCode::kResourceExhausted));
  request.may_leave_devices = true;
  const PlanEvaluation found = FindPlan(request, absl::MakeConstSpan(&option, 1)).value();
  EXPECT_EQ(found.left_out.size(), 2u);
  EXPECT_OK(CheckFits(found));
  EXPECT_GT(found.lower_bound_ns, 0);
  EXPECT_LE(found.lower_bound_ns, found.objective_ns);
}

// Returns the fastest plan that fits under 1F1B, over all options, sizes, cuts into as many stages
// as devices, and sets of layers that repeat F.
double FastestOfAll(const std::vector<ModelOption>& options, int64_t batch_rows) {
  double best_ns = kNoPlan;
  for (const ModelOption& option : options) {
    const int layers = option.profile.num_layers(), ranks = option.cluster.size();
    for (const SizedLayers& size : option.profile.sizes) {
      const auto micro_batches = static_cast<int>(batch_rows / size.micro_batch_rows);
      Plan plan = {
          .num_layers = layers,
          .micro_batch_rows = size.micro_batch_rows,
          .schedule = schedule::OneFOneB({.ranks = ranks, .micro_batches = micro_batches}).value()};
      for (unsigned begins = 1; begins < 1U << layers; begins += 2) {  // a stage begins with 0
        plan.first_layer.clear();
        for (int layer = 0; layer < layers; ++layer) {
          if ((begins >> layer & 1U) != 0) plan.first_layer.push_back(layer);
        }
        if (plan.num_stages() != ranks) continue;
        for (unsigned again = 0; again < 1U << (layers - 2); ++again) {
          plan.recomputed.clear();
          for (int layer = 1; layer + 1 < layers; ++layer) {
            if ((again >> (layer - 1) & 1U) != 0) plan.recomputed.push_back(layer);
          }
          const PlanEvaluation evaluation =
              EvaluatePlan(plan, option.profile, option.cluster).value();
          if (CheckFits(evaluation).ok()) best_ns = std::min(best_ns, evaluation.objective_ns);
        }
      }
    }
  }
  return best_ns;
}

TEST(PlanOptions, EqualExhaustiveSearch) {
  std::mt19937 random(17);
  int fitting = 0, recomputing = 0, selectively = 0;
  std::vector<int> chosen(8);
  for (int trial = 0; trial < 60; ++trial) {
    TransformerDescription description = OpenDescription();
    Transformer& transformer = description.transformer;
    transformer.hidden = 32 << random() % 3;
    transformer.sequence = 32 << random() % 3;
    transformer.memory_gigabytes_per_second = static_cast<double>(random() % 3) * 50;
    transformer.sequence_parallel = random() % 2 == 0;
    if (trial % 2 == 1) description.recomputes = {Recompute::kFull, Recompute::kSelective};
    transformer.repeated = {.scores = true, .norms = true, .activation = true};
    PlannerRequest request;
    request.schedule = "1f1b";
    request.chunks = 1;
    request.batch_rows = 4;
    // The memory ranges from where nothing fits to where everything does.
    const int64_t memory_bytes = (transformer.hidden * transformer.hidden * 250 +
                                  transformer.sequence * transformer.hidden * 40 +
                                  transformer.sequence * transformer.sequence * 80) *
                                 static_cast<int64_t>(20 + random() % 100) / 50;
    const std::vector<ModelOption> options =
        TransformerOptions(description, "gpt", FourDevices(memory_bytes)).value();
    const double expected_ns = FastestOfAll(options, request.batch_rows);
    const absl::StatusOr<PlanEvaluation> found = FindPlan(request, options);
    if (expected_ns == kNoPlan) {
      EXPECT_FALSE(found.ok());
      continue;
    }
    ASSERT_OK(found);
    const PlanEvaluation& evaluation = *found;
    EXPECT_EQ(evaluation.objective_ns, expected_ns) << "trial " << trial;
    EXPECT_LE(evaluation.lower_bound_ns, expected_ns);
    EXPECT_EQ(evaluation.choice.option, options[found->option_index].name);
    if (evaluation.runner_up.has_value()) {
      EXPECT_GE(evaluation.runner_up->objective_ns, expected_ns);
    }
    ++fitting;
    ++chosen[found->option_index];
    recomputing += !evaluation.plan().recomputed.empty();
    selectively += !evaluation.plan().recomputed.empty() &&
                   absl::StrContains(evaluation.choice.option, "selective recomputation");
  }
  EXPECT_GT(fitting, 30);
  EXPECT_LT(fitting, 60);
  EXPECT_GT(recomputing, 0);
  EXPECT_GT(selectively, 0);
  EXPECT_GT(std::count_if(chosen.begin(), chosen.end(), [](int count) { return count > 0; }), 2)
      << ::testing::PrintToString(chosen);
}

// Two options that differ only in speed: the runner-up is the slower one, under the same schedule.
TEST(PlanOptions, RunnerUpMayBeAnotherOption) {
  PlannerRequest request;
  request.schedule = "1f1b";
  request.chunks = 1;
  request.batch_rows = 4;
  TransformerDescription description = OpenDescription();
  description.transformer.micro_batch_rows = {1};
  description.attentions = {Attention::kStored};
  std::vector<ModelOption> options = TransformerOptions(description, "gpt", FourDevices(0)).value();
  options.resize(1);
  options.push_back(options[0]);
  for (LayerCost& layer : options[1].profile.sizes[0].layers) layer.forward_ns *= 0.99;
  options[0].name = "slow";
  options[1].name = "fast";
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation chosen, FindPlan(request, options));
  EXPECT_EQ(chosen.option_index, 1u);
  EXPECT_THAT(chosen.choice.ToString(), HasSubstr("4 ranks, fast"));
  ASSERT_TRUE(chosen.runner_up.has_value());
  EXPECT_EQ(chosen.runner_up->option, "slow");
  EXPECT_FALSE(chosen.runner_up_reason.empty());
  // The counts cover all options.
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation slow, FindPlan(request, {options.data(), 1}));
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation fast, FindPlan(request, {&options[1], 1}));
  EXPECT_GT(fast.simulated, 0);
  EXPECT_EQ(chosen.simulated, slow.simulated + fast.simulated);
  EXPECT_EQ(chosen.considered, slow.considered + fast.considered);
}

// The search of the best option goes on where it ended, and finds what one of that option alone
// finds.
TEST(PlanOptions, TheBestIsImproved) {
  PlannerRequest request;
  request.batch_rows = 8;
  TransformerDescription description = OpenDescription();
  description.transformer.layers = 10;
  const std::vector<ModelOption> options =
      TransformerOptions(description, "gpt", FourDevices(4'000'000)).value();
  ASSERT_GT(options.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation found, FindPlan(request, options));
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation improved,
                       FindPlan(request, options, {.improves = true}));
  EXPECT_EQ(found.rounds.count, 0);
  EXPECT_GT(improved.rounds.count, 0);
  EXPECT_LT(improved.objective_ns, found.objective_ns);
  EXPECT_EQ(improved.considered, found.considered);
  const ModelOption& best = options[improved.option_index];
  EXPECT_EQ(improved.choice.option, best.name);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation alone,
                       FindPlan(request, {&best, 1}, {.improves = true}));
  EXPECT_EQ(improved.objective_ns, alone.objective_ns);
}

TEST(PlanOptions, WithoutAPlanSayWhyOfEach) {
  PlannerRequest request;
  request.schedule = "1f1b";
  request.batch_rows = 4;
  const std::vector<ModelOption> options =
      TransformerOptions(OpenDescription(), "gpt", FourDevices(1000)).value();
  EXPECT_THAT(
      FindPlan(request, options),
      testing::StatusIs(absl::StatusCode::kResourceExhausted,
                        AllOf(HasSubstr("stored attention, tensor parallelism 1: the model does"),
                              HasSubstr("\nrecomputed attention, tensor parallelism 2: the"))));
}

// Returns twelve equal layers with large outputs.
ModelOption EqualLayers(Cluster cluster) {
  SizedLayers sized = {.micro_batch_rows = 1};
  for (int i = 0; i < 12; ++i) {
    LayerCost& layer = sized.layers.emplace_back();
    layer.name = std::to_string(i);
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 1'000'000;
    layer.memory.output_bytes = layer.memory.input_bytes = 1'000'000;
  }
  return {"", {.model = "equal", .sizes = {sized}}, std::move(cluster)};
}

PlannerRequest LeavingRequest() {
  PlannerRequest request;
  request.schedule = "1f1b";
  request.batch_rows = 4;
  request.may_leave_devices = true;
  return request;
}

TEST(PlanOptions, LeaveDevicesOutWhereMessagesCostMore) {
  Cluster cluster = FourDevices(0);
  cluster.between_hosts.bytes_per_second = 1e6;  // a second per message
  const ModelOption option = EqualLayers(cluster);
  PlannerRequest request = LeavingRequest();
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation chosen, FindPlan(request, {&option, 1}));
  EXPECT_THAT(chosen.left_out, ::testing::ElementsAre("2", "3"));
  EXPECT_EQ(chosen.plan().num_ranks(), 2);
  EXPECT_EQ(chosen.cluster.size(), 2);
  EXPECT_LE(chosen.lower_bound_ns, chosen.objective_ns);
  // It is the plan for these two alone, and the runner-up is one for more devices.
  request.may_leave_devices = false;
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation all, FindPlan(request, {&option, 1}));
  EXPECT_TRUE(all.left_out.empty());
  EXPECT_EQ(all.cluster.size(), 4);
  EXPECT_LE(chosen.runner_up->objective_ns, all.objective_ns);
  EXPECT_GT(chosen.runner_up->objective_ns, chosen.objective_ns);
  cluster.devices.resize(2);
  const ModelOption two = EqualLayers(cluster);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation of_two, FindPlan(request, {&two, 1}));
  EXPECT_EQ(chosen.objective_ns, of_two.objective_ns);
}

// Without what 1F1B has in flight, which it takes its order to know, fewer devices seem worth a
// search.
TEST(PlanOptions, BoundsOfFewerDevicesCountWhatALongScheduleHasInFlight) {
  constexpr int kDevices = 96;
  ModelOption option = EqualLayers(UniformCluster(kDevices, 0));
  std::vector<LayerCost>& layers = option.profile.sizes.front().layers;
  const LayerCost layer = layers.front();
  layers.clear();
  for (int i = 0; i < 2 * kDevices; ++i) {
    layers.push_back(layer);
    layers.back().name = std::to_string(i);
  }
  PlannerRequest request = LeavingRequest();
  request.batch_rows = request.micro_batches.emplace(kDevices);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation chosen, FindPlan(request, {&option, 1}));
  EXPECT_TRUE(chosen.left_out.empty());
  EXPECT_EQ(chosen.considered, 1);
  EXPECT_GT(chosen.lower_bound_ns, 0.98 * chosen.objective_ns);
}

TEST(PlanOptions, LeaveTheSlowestOutWhereverItIs) {
  Cluster cluster = FourDevices(0);
  cluster.devices[1].speed = 0.01;
  cluster.exceptions = {{.from = 0, .to = 2, .link = {.latency_ns = 7}},
                        {.from = 0, .to = 1, .link = {.latency_ns = 9}}};
  const ModelOption option = EqualLayers(cluster);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation chosen, FindPlan(LeavingRequest(), {&option, 1}));
  EXPECT_THAT(chosen.left_out, ::testing::ElementsAre("1"));
  // Links stay with their devices.
  ASSERT_EQ(chosen.cluster.exceptions.size(), 1u);
  EXPECT_EQ(chosen.cluster.exceptions.front().to, 1);
  EXPECT_EQ(chosen.cluster.LinkBetween(0, 1).latency_ns, 7);
}

TEST(PlanOptions, UseAllDevicesWhereThatIsFaster) {
  const ModelOption option = EqualLayers(FourDevices(0));
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation chosen, FindPlan(LeavingRequest(), {&option, 1}));
  EXPECT_TRUE(chosen.left_out.empty());
  EXPECT_EQ(chosen.plan().num_ranks(), 4);
}

// All layers that can repeat F do, whatever the memory, as fast as the best plan that does so.
TEST(FindPlan, RecomputesAllLayersOnRequest) {
  TransformerDescription description = OpenDescription();
  description.attentions = {Attention::kStored};
  description.tensor_parallel = {2};
  const ModelOption option = TransformerOptions(description, "gpt", FourDevices(0)).value().front();
  PlannerRequest request;
  request.profile = option.profile;
  request.cluster = option.cluster;
  request.batch_rows = 4;
  request.schedule = "1f1b";
  request.recomputes_all = true;
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation all, FindPlan(request));
  EXPECT_THAT(all.plan().recomputed, ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(all.choice.recomputed_layers, 3);
  double best_ns = kNoPlan;
  for (int first = 1; first < 5; ++first) {
    for (const int rows : {1, 2}) {
      const Plan plan = {
          .first_layer = {0, first},
          .num_layers = 5,
          .micro_batch_rows = rows,
          .schedule = schedule::OneFOneB({.ranks = 2, .micro_batches = 4 / rows}).value(),
          .recomputed = {1, 2, 3}};
      best_ns = std::min(best_ns,
                         EvaluatePlan(plan, option.profile, option.cluster).value().objective_ns);
    }
  }
  EXPECT_EQ(all.objective_ns, best_ns);
  EXPECT_GT(all.considered, 0);
}

}  // namespace
}  // namespace stagecoach::partition
