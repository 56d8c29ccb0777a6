#include "schedule/simulate/shared_cores.h"

#include <string>

#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::schedule {
namespace {

constexpr int kMicroBatches = 6;

Costs CostsOf(const Schedule& schedule) {
  Costs costs;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    costs.stages.push_back({.forward_ns = 1000 + 100 * stage,
                            .backward_input_ns = 1300,
                            .backward_weight_ns = 900,
                            .backward_ns = 2200,
                            .step_ns = 500});
  }
  costs.updates_in_backward = true;
  return costs;
}

TEST(SharedCores, AreNoneWithACoreForEveryRank) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    const Schedule schedule = Generate(name, {.ranks = 3, .micro_batches = kMicroBatches}).value();
    const Costs costs = CostsOf(schedule);
    EXPECT_DOUBLE_EQ(SharedCoresStepNs(schedule, costs, 3),
                     static_cast<double>(SimulateDurations(schedule, costs).value().step_ns))
        << name;
  }
}

TEST(SharedCores, OfOneCoreAreNeverIdle) {
  const Schedule schedule = Generate("1f1b", {.ranks = 3, .micro_batches = kMicroBatches}).value();
  const Costs costs = CostsOf(schedule);
  double work_ns = 0;
  for (const StageTimes& stage : costs.stages) {
    work_ns +=
        static_cast<double>(kMicroBatches * (stage.forward_ns + stage.backward_ns) + stage.step_ns);
  }
  EXPECT_NEAR(SharedCoresStepNs(schedule, costs, 1), work_ns, 1e-6 * work_ns);
  EXPECT_NEAR(SharedCoresStepNs(schedule, costs, 0.5), 2 * work_ns, 1e-6 * work_ns);
}

TEST(SharedCores, AreBetweenTheseOtherwise) {
  const Schedule schedule = Generate("zb-v", {.ranks = 4, .micro_batches = 8}).value();
  const Costs costs = CostsOf(schedule);
  double before = SharedCoresStepNs(schedule, costs, 1);
  for (const double cores : {1.5, 2.0, 3.0, 4.0}) {
    const double now = SharedCoresStepNs(schedule, costs, cores);
    EXPECT_LT(now, before) << cores;
    EXPECT_GE(now, SharedCoresStepNs(schedule, costs, 1) / cores * (1 - 1e-9)) << cores;
    before = now;
  }
}

}  // namespace
}  // namespace stagecoach::schedule
