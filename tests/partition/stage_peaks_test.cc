#include "partition/stage_peaks.h"

#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "partition/plan.h"
#include "schedule/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// A schedule for `stages` stages of one layer each.
schedule::Schedule Lowered(absl::string_view name, int stages, int micro_batches) {
  Plan plan;
  for (int stage = 0; stage < stages; ++stage) plan.first_layer.push_back(stage);
  plan.num_layers = stages;
  plan.schedule = std::string(name);
  plan.micro_batches = micro_batches;
  return LoweredSchedule(plan).value();
}

TEST(StagePeaks, MemoryIsThatOfTheRangeInItsPosition) {
  std::mt19937 random(1);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  const LossMemory loss = RandomLoss(random);
  StagePeaks peaks(layers, loss, Lowered("1f1b", 3, 4));
  const auto range = absl::MakeConstSpan(layers);
  EXPECT_EQ(peaks.Memory({0, 1, 0}), AggregateStage(range.subspan(0, 2), loss, {.is_first = true}));
  EXPECT_EQ(peaks.Memory({2, 4, 1}), AggregateStage(range.subspan(2, 3), loss, {}));
  EXPECT_EQ(peaks.Memory({5, 5, 2}), AggregateStage(range.subspan(5, 1), loss, {.is_last = true}));
}

TEST(StagePeaks, PeakIsThatOfTheMemoryPlan) {
  std::mt19937 random(2);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  StagePeaks peaks(layers, {}, Lowered("1f1b", 3, 4));
  ASSERT_OK_AND_ASSIGN(const schedule::MemoryPlan plan, peaks.PlanRange({1, 3, 1}));
  ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks.PeakBytes({1, 3, 1}));
  EXPECT_EQ(peak_bytes, plan.peak_bytes());
}

// The pre-condition of an exact search with bounds.
TEST(StagePeaks, BoundNeverExceedsThePeak) {
  std::mt19937 random(3);
  for (const schedule::Generator& generator : schedule::Generators()) {
    for (int i = 0; i < 100; ++i) {
      const int stages = 1 + static_cast<int>(random() % 5);
      const int micro_batches = 1 + static_cast<int>(random() % 9);
      const std::vector<LayerCost> layers = RandomLayers(random, stages + 2);
      StagePeaks peaks(layers, RandomLoss(random), Lowered(generator.name, stages, micro_batches));
      for (int stage = 0; stage < stages; ++stage) {
        const StageRange range = {stage, stage + 2, stage};
        const int64_t at_least_bytes = peaks.AtLeast(range);
        ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks.PeakBytes(range));
        ASSERT_LE(at_least_bytes, peak_bytes)
            << generator.name << ", stage " << stage << " of " << stages << ", " << micro_batches
            << " micro-batches, problem " << i;
      }
    }
  }
}

TEST(StagePeaks, BoundIsThePeakOnceThatIsKnown) {
  std::mt19937 random(4);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  StagePeaks peaks(layers, {}, Lowered("1f1b", 3, 4));
  ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks.PeakBytes({1, 3, 1}));
  EXPECT_EQ(peaks.AtLeast({1, 3, 1}), peak_bytes);
}

}  // namespace
}  // namespace stagecoach::partition
