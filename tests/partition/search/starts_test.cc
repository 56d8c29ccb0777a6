#include "partition/search/starts.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/search/planner.h"
#include "tests/partition/published.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGigabyte = 1'000'000'000;

PlannerRequest RequestOf(const std::string& graph, int devices, int64_t memory_bytes = 0) {
  PlannerRequest request;
  request.profile = Published(graph);
  request.cluster = UniformCluster(devices, memory_bytes);
  request.cluster.within_host = {.latency_ns = 5'000, .bytes_per_second = 24e9};
  request.batch_rows = 8;
  request.micro_batches = 8;
  return request;
}

// A search that has no time of its own.
absl::StatusOr<PlanEvaluation> FindAtOnce(const PlannerRequest& request) {
  return FindPlan(request, {.is_cancelled = [] { return true; }, .improves = true});
}

TEST(Starts, AreTheAnswerIfThereIsNoTimeToSearch) {
  for (const char* graph : {"vgg16", "resnet50"}) {  // a chain, and a graph
    SCOPED_TRACE(graph);
    PlannerRequest request = RequestOf(graph, 4, 20 * kGigabyte);
    const PlanEvaluation harder = FindPlan(request).value();
    request.cluster = RequestOf(graph, 4).cluster;
    EXPECT_THAT(FindAtOnce(request), StatusIs(absl::StatusCode::kCancelled));
    request.starts = {harder.plan()};
    const PlanEvaluation easier = FindAtOnce(request).value();
    EXPECT_EQ(easier.start, 0u);
    EXPECT_EQ(easier.plan(), harder.plan());
    EXPECT_EQ(easier.objective_ns, harder.objective_ns);
    EXPECT_THAT(easier.starts, ElementsAre(absl::OkStatus()));
    EXPECT_TRUE(easier.is_cut_short);
    EXPECT_GT(easier.lower_bound_ns, 0);
    EXPECT_LT(easier.lower_bound_ns, easier.objective_ns);
  }
}

TEST(Starts, AreImproved) {
  PlannerRequest request = RequestOf("vgg16", 4);
  request.schedule = "1f1b";
  const PlanEvaluation best = FindPlan(request).value();
  Plan plan = best.plan();
  plan.first_layer = {0, 10, 20, 30};
  const PlanEvaluation start = EvaluateStart(plan, request).value();
  ASSERT_GT(start.objective_ns, 1.05 * best.objective_ns);
  request.starts = {plan};
  const PlanEvaluation found = FindPlan(request).value();
  EXPECT_EQ(found.objective_ns, best.objective_ns);
  EXPECT_EQ(found.start, std::nullopt);
  EXPECT_THAT(found.starts, ElementsAre(absl::OkStatus()));
}

TEST(Starts, TheBestThatFitsIsTaken) {
  PlannerRequest request = RequestOf("vgg16", 4);
  request.schedule = "1f1b";
  Plan even = FindPlan(request).value().plan();
  Plan uneven = even;
  even.first_layer = {0, 6, 13, 20};
  uneven.first_layer = {0, 1, 2, 3};
  request.starts = {uneven, even, uneven};
  const PlanEvaluation free = FindAtOnce(request).value();
  EXPECT_EQ(free.start, 1u);
  EXPECT_EQ(free.runner_up, std::nullopt);
  // With too little memory for one, it is another.
  const auto peak_bytes = [&](const Plan& plan) {
    const PlanEvaluation evaluation = EvaluateStart(plan, request).value();
    int64_t bytes = 0;
    for (const RankReport& rank : evaluation.compiled.ranks) {
      bytes = std::max(bytes, rank.peak_bytes());
    }
    return bytes;
  };
  const int64_t needed = peak_bytes(uneven);
  ASSERT_LT(needed, peak_bytes(even));
  request.cluster = RequestOf("vgg16", 4, needed).cluster;
  const PlanEvaluation limited = FindAtOnce(request).value();
  EXPECT_EQ(limited.start, 0u);
  EXPECT_THAT(limited.starts[1],
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more than its memory")));
}

TEST(Starts, MayBeForFewerDevices) {
  PlannerRequest request = RequestOf("vgg16", 2);
  const PlanEvaluation of_two = FindPlan(request).value();
  request = RequestOf("vgg16", 4);
  for (int i = 0; i < 4; ++i) request.cluster.devices[static_cast<size_t>(i)].host = i / 2;
  // So slow that no message between hosts pays off.
  request.cluster.between_hosts = {.latency_ns = 1'000'000'000, .bytes_per_second = 1};
  request.starts = {of_two.plan()};
  request.may_leave_devices = true;
  const ModelOption option = {.profile = request.profile, .cluster = request.cluster};
  const PlanEvaluation found =
      FindPlan(request, absl::MakeConstSpan(&option, 1), {.improves = true}).value();
  EXPECT_LE(found.objective_ns, of_two.objective_ns);
  EXPECT_EQ(found.left_out.size(), 2u);
  EXPECT_THAT(found.starts, ElementsAre(absl::OkStatus()));
}

TEST(Starts, OfAModelThatIsRecomputedAreThoseThatRecomputeIt) {
  PlannerRequest request = RequestOf("vgg16", 2);
  for (LayerCost& layer : request.profile.sizes.front().layers) layer.recompute_stash_bytes = 0;
  request.recomputes_all = true;
  const PlanEvaluation found = FindPlan(request).value();
  EXPECT_EQ(found.plan().recomputed.size(), static_cast<size_t>(found.plan().num_layers));
  request.starts = {found.plan()};
  const PlanEvaluation again = FindAtOnce(request).value();
  EXPECT_EQ(again.start, 0u);
  EXPECT_EQ(again.plan(), found.plan());
  EXPECT_EQ(again.objective_ns, found.objective_ns);
}

// Stages may have been divided, so that sums over replicas begin sooner: their number says nothing.
TEST(Starts, WithReplicasMayHaveAnyNumberOfStages) {
  PlannerRequest request = RequestOf("vgg16", 4);
  request.schedule = "interleaved";
  request.replicas = 2;
  request.chunks = 2;
  const Plan plan = FindPlan(request).value().plan();
  request.chunks = 1;
  EXPECT_OK(EvaluateStart(plan, request));
}

struct Difference {
  std::string because;
  void (*change)(PlannerRequest& request, Plan& plan);
};

const Difference kDifferences[] = {
    {"it has 40 layers, and 22 are asked for",
     [](PlannerRequest& request, Plan&) { request.profile = Published("alexnet"); }},
    {"it has 4 devices, and 3 are asked for",
     [](PlannerRequest& request, Plan&) { request.cluster = UniformCluster(3, 0); }},
    {"it has 8 rows, and 16 are asked for",
     [](PlannerRequest& request, Plan&) { request.batch_rows = 16; }},
    {"it has 8 micro-batches, and 4 are asked for",
     [](PlannerRequest& request, Plan&) { request.micro_batches = 4; }},
    {"its schedule is 1f1b, and gpipe is asked for",
     [](PlannerRequest& request, Plan&) { request.schedule = "gpipe"; }},
    {"its schedule is not the one that is asked for",
     [](PlannerRequest& request, Plan& plan) {
       request.given = plan.schedule;
       plan.schedule.actions.front().pop_back();
     }},
    {"it has 4 stages, and 8 are asked for",
     [](PlannerRequest& request, Plan&) { request.chunks = 2; }},
    {"it has 1 replica, and 2 are asked for",
     [](PlannerRequest& request, Plan&) { request.replicas = 2; }},
    {"it has 1 gradient block, and 4 are asked for",
     [](PlannerRequest& request, Plan&) { request.gradient_blocks = 4; }},
    {"its replicas exchange gradients differently",
     [](PlannerRequest&, Plan& plan) { plan.replication.part_bytes *= 2; }},
    {"its optimizer's state is in the memory of the devices",
     [](PlannerRequest& request, Plan&) { request.offloads_optimizer = true; }},
    {"its optimizer's state is in the memory of the host",
     [](PlannerRequest&, Plan& plan) { plan.replication.offloads_optimizer = true; }},
    {"it recomputes layers",
     [](PlannerRequest& request, Plan& plan) {
       for (LayerCost& layer : request.profile.sizes.front().layers) {
         layer.recompute_stash_bytes = 0;
       }
       plan.recomputed = {3};
       request.may_recompute = false;
     }},
};

TEST(Starts, OfOtherRequestsAreRefused) {
  PlannerRequest request = RequestOf("vgg16", 4);
  request.schedule = "1f1b";
  const Plan plan = FindPlan(request).value().plan();
  EXPECT_OK(EvaluateStart(plan, request));
  for (const Difference& difference : kDifferences) {
    PlannerRequest other = request;
    Plan start = plan;
    difference.change(other, start);
    EXPECT_THAT(EvaluateStart(start, other),
                StatusIs(absl::StatusCode::kInvalidArgument, difference.because));
  }
}

}  // namespace
}  // namespace stagecoach::partition
