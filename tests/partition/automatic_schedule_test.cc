#include "partition/automatic_schedule.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/stage_costs.h"
#include "schedule/simulate.h"
#include "schedule/stash.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kMicroBatches = 8;

// Twelve equal layers whose three passes take equally long.
PlanRequest EqualLayers(int devices) {
  PlanRequest request;
  for (int i = 0; i < 12; ++i) {
    LayerCost layer{.name = "layer", .parameters = 10};
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 1000;
    layer.step_ns = 100;
    layer.memory.parameter_bytes = 40;
    layer.memory.input_bytes = layer.memory.output_bytes = 512;
    layer.memory.stash_bytes = 4096;
    request.layers.push_back(layer);
  }
  request.devices = devices;
  return request;
}

int64_t StepNs(const Plan& plan, const PlanRequest& request) {
  const schedule::Costs costs =
      StageCosts(ReportPlan(plan, request.layers, request.loss).value(), request.layers);
  return SimulateDurations(LoweredSchedule(plan).value(), costs, schedule::Sends::kRendezvous)
      .value()
      .step_ns;
}

Plan PlanWith(PlanRequest request, ScheduleMaker maker) {
  request.schedule = std::move(maker);
  return MakePlan(request).value();
}

TEST(AutomaticSchedule, IsNoSlowerThanTheOnesItStartsFrom) {
  for (int devices = 1; devices <= 4; ++devices) {
    const PlanRequest request = EqualLayers(devices);
    const Plan found = PlanWith(request, AutomaticSchedule(request, kMicroBatches));
    EXPECT_EQ(found.schedule.name, "auto");
    EXPECT_EQ(found.num_devices(), devices);
    // Those that fit into what 1F1B's first device stashes.
    for (const char* name : {"1f1b", "zb-h1", "zb-v"}) {
      const Plan plan = PlanWith(request, GeneratedSchedule(name, kMicroBatches));
      EXPECT_LE(StepNs(found, request), StepNs(plan, request)) << devices << " " << name;
    }
  }
}

TEST(AutomaticSchedule, KeepsToTheChunksThatAreAskedFor) {
  const PlanRequest request = EqualLayers(3);
  EXPECT_EQ(PlanWith(request, AutomaticSchedule(request, kMicroBatches, 1)).num_stages(), 3);
  EXPECT_EQ(PlanWith(request, AutomaticSchedule(request, kMicroBatches, 2)).num_stages(), 6);
  EXPECT_EQ(PlanWith(request, AutomaticSchedule(request, kMicroBatches, 4)).num_stages(), 12);
}

TEST(AutomaticSchedule, TakesOneStagePerDeviceWhereLayersDoNotSufficeForTwo) {
  PlanRequest request = EqualLayers(4);
  request.layers.resize(7);
  EXPECT_EQ(PlanWith(request, AutomaticSchedule(request, kMicroBatches)).num_stages(), 4);
}

// Half of what a schedule without a limit takes still trains.
TEST(AutomaticSchedule, FitsIntoTheMemoryOfTheDevices) {
  PlanRequest request = EqualLayers(3);
  const auto peak_of = [&](const Plan& plan) {
    int64_t peak_bytes = 0;
    const PlanReport report = ReportPlan(plan, request.layers, request.loss).value();
    for (const RankReport& rank : report.ranks) {
      peak_bytes = std::max(peak_bytes, rank.peak_bytes());
    }
    return peak_bytes;
  };
  const int64_t gpipe = peak_of(PlanWith(request, GeneratedSchedule("gpipe", kMicroBatches)));
  request.device_memory_bytes = gpipe / 2;
  const Plan plan = PlanWith(request, AutomaticSchedule(request, kMicroBatches));
  EXPECT_LE(peak_of(plan), request.device_memory_bytes);
}

// At any memory: wherever a hand-written schedule fits, something is found that is no slower.
TEST(AutomaticSchedule, IsNeverWorseThanAnyScheduleThatFits) {
  PlanRequest request = EqualLayers(3);
  const int64_t most = [&] {
    const Plan plan = PlanWith(request, GeneratedSchedule("gpipe", kMicroBatches));
    return ReportPlan(plan, request.layers, request.loss).value().ranks[0].peak_bytes();
  }();
  int fitting = 0;
  for (int percent = 30; percent <= 110; percent += 8) {
    request.device_memory_bytes = most * percent / 100;
    request.schedule = AutomaticSchedule(request, kMicroBatches);
    const absl::StatusOr<Plan> found = MakePlan(request);
    for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"}) {
      PlanRequest other = request;
      other.schedule = GeneratedSchedule(name, kMicroBatches);
      const absl::StatusOr<Plan> plan = MakePlan(other);
      if (!plan.ok()) continue;
      ASSERT_TRUE(found.ok()) << percent << " % " << name << ": " << found.status();
      EXPECT_LE(StepNs(*found, request), StepNs(*plan, request)) << percent << " % " << name;
      ++fitting;
    }
  }
  EXPECT_GT(fitting, 30);
}

TEST(AutomaticSchedule, TellsWhatIsMissingWhereNothingFits) {
  PlanRequest request = EqualLayers(3);
  request.device_memory_bytes = 1000;
  request.schedule = AutomaticSchedule(request, kMicroBatches);
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the model does not fit")));
}

TEST(StageCosts, SumTheLayersOfEachStage) {
  PlanRequest request = EqualLayers(3);
  request.layers[4].forward_ns = 5000;  // of stage 1
  const Plan plan = {.first_layer = {0, 4, 8},
                     .num_layers = 12,
                     .schedule = GeneratedSchedule("zb-h1", 2)(3).value()};
  const schedule::Costs costs =
      StageCosts(ReportPlan(plan, request.layers, request.loss).value(), request.layers);
  ASSERT_EQ(costs.stages.size(), 3U);
  EXPECT_EQ(costs.stages[0].forward_ns, 4000);
  EXPECT_EQ(costs.stages[1].forward_ns, 8000);
  EXPECT_EQ(costs.stages[1].backward_ns, 8000);
  EXPECT_EQ(costs.stages[1].step_ns, 400);
  EXPECT_EQ(costs.stages[0].output_bytes, 512);
  EXPECT_EQ(costs.stages[0].input_gradient_bytes, 0);
  EXPECT_EQ(costs.stages[1].input_gradient_bytes, 512);
  EXPECT_TRUE(costs.steps_in_backward);
}

// In units of one stage's micro-batches, what the memory planner finds.
TEST(StashBytes, GiveThePeaksOfTheMemoryPlanner) {
  for (const char* name : {"1f1b", "zb-h1", "zb-h2", "zb-v"}) {
    const PlanRequest request = EqualLayers(3);
    const Plan plan = PlanWith(request, GeneratedSchedule(name, kMicroBatches));
    const PlanReport report = ReportPlan(plan, request.layers, request.loss).value();
    std::vector<schedule::StageMemory> memory;
    for (const StageReport& stage : report.stages) memory.push_back(stage.memory);
    const std::vector<double> peaks = PeakStash(LoweredSchedule(plan).value(), StashBytes(memory));
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      // Neighbouring stages on one rank share the tensor between them.
      EXPECT_GE(peaks[rank], static_cast<double>(report.ranks[rank].training.peak_stash_bytes))
          << name << " " << rank;
      EXPECT_LE(peaks[rank],
                1.3 * static_cast<double>(report.ranks[rank].training.peak_stash_bytes))
          << name << " " << rank;
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
