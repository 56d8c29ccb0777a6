#include "partition/plan/stage_costs.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "partition/search/make_plan.h"
#include "schedule/stash.h"

namespace stagecoach::partition {
namespace {

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

Plan PlanWith(PlanRequest request, ScheduleMaker maker) {
  request.schedule = std::move(maker);
  return MakePlan(request).value();
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
      // Neighboring stages on one rank share the tensor between them.
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
