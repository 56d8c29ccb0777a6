#include "partition/stage_peaks.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "partition/plan.h"
#include "schedule/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// The memory of stages of `layers` under a generated schedule.
class Peaks {
 public:
  Peaks(const std::vector<LayerCost>& layers, const LossMemory& loss, const std::string& name,
        int devices, int micro_batches)
      : peaks_(Make(layers, loss, name, devices, micro_batches)) {}

  StagePeaks* operator->() { return &peaks_; }

 private:
  static StagePeaks Make(const std::vector<LayerCost>& layers, const LossMemory& loss,
                         const std::string& name, int devices, int micro_batches) {
    Plan plan = {.schedule = GeneratedSchedule(name, micro_batches)(devices).value()};
    plan.num_layers = plan.schedule.num_stages();
    for (int stage = 0; stage < plan.num_layers; ++stage) plan.first_layer.push_back(stage);
    return StagePeaks(layers, loss, LoweredSchedule(plan).value(), LoweredEvaluation(plan).value());
  }

  StagePeaks peaks_;
};

TEST(StagePeaks, MemoryIsThatOfTheRangeInItsPosition) {
  std::mt19937 random(1);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  const LossMemory loss = RandomLoss(random);
  Peaks peaks(layers, loss, "1f1b", 3, 4);
  const auto range = absl::MakeConstSpan(layers);
  EXPECT_EQ(peaks->Memory({0, 1, 0}),
            AggregateStage(range.subspan(0, 2), loss, {.is_first = true}));
  EXPECT_EQ(peaks->Memory({2, 4, 1}), AggregateStage(range.subspan(2, 3), loss, {}));
  EXPECT_EQ(peaks->Memory({5, 5, 2}), AggregateStage(range.subspan(5, 1), loss, {.is_last = true}));
}

TEST(StagePeaks, MemoryIsThatOfASplitBackwardWhereTheScheduleSplitsIt) {
  std::mt19937 random(1);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  Peaks peaks(layers, {}, "zb-h1", 3, 4);
  EXPECT_EQ(peaks->Memory({2, 4, 1}), AggregateStage(absl::MakeConstSpan(layers).subspan(2, 3), {},
                                                     {.splits_backward = true}));
}

TEST(StagePeaks, PeakIsThatOfThePlan) {
  std::mt19937 random(2);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  const Plan plan = {.first_layer = {0, 1, 4},
                     .num_layers = 6,
                     .schedule = GeneratedSchedule("1f1b", 4)(3).value()};
  ASSERT_OK_AND_ASSIGN(const PlanReport report, ReportPlan(plan, layers, {}));
  Peaks peaks(layers, {}, "1f1b", 3, 4);
  ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks->PeakBytes({1, 3, 1}));
  EXPECT_EQ(peak_bytes, report.ranks[1].peak_bytes());
}

// The pre-condition of an exact search with bounds.
TEST(StagePeaks, BoundNeverExceedsThePeak) {
  std::mt19937 random(3);
  for (const schedule::Generator& generator : schedule::Generators()) {
    for (int i = 0; i < 100; ++i) {
      const int devices = 1 + static_cast<int>(random() % 4);
      const int micro_batches = 1 + static_cast<int>(random() % 9);
      const std::string name(generator.name);
      const auto made = GeneratedSchedule(name, micro_batches)(devices);
      if (!made.ok()) continue;  // it refuses this shape
      const int stages = made->num_stages();
      const std::vector<LayerCost> layers = RandomLayers(random, stages + 2);
      Peaks peaks(layers, RandomLoss(random), name, devices, micro_batches);
      for (int stage = 0; stage < stages; ++stage) {
        const StageRange range = {stage, stage + 2, stage};
        const int64_t at_least_bytes = peaks->AtLeast(range);
        ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks->PeakBytes(range));
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
  Peaks peaks(layers, {}, "1f1b", 3, 4);
  ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks->PeakBytes({1, 3, 1}));
  EXPECT_EQ(peaks->AtLeast({1, 3, 1}), peak_bytes);
}

TEST(StagePeaks, LargestPeakCountsAllStagesOfADevice) {
  std::mt19937 random(5);
  const std::vector<LayerCost> layers = RandomLayers(random, 8);
  const Plan plan = {.first_layer = {0, 1, 4, 6},
                     .num_layers = 8,
                     .schedule = GeneratedSchedule("zb-v", 5)(2).value()};
  ASSERT_OK_AND_ASSIGN(const PlanReport report, ReportPlan(plan, layers, {}));
  Peaks peaks(layers, {}, "zb-v", 2, 5);
  const StageRange ranges[] = {{0, 0, 0}, {1, 3, 1}, {4, 5, 2}, {6, 7, 3}};
  ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks->LargestPeakBytes(ranges));
  EXPECT_EQ(peak_bytes, std::max(report.ranks[0].peak_bytes(), report.ranks[1].peak_bytes()));
}

}  // namespace
}  // namespace stagecoach::partition
