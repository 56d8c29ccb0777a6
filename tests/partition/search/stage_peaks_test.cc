#include "partition/evaluate/stage_peaks.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "partition/search/balance_stages.h"
#include "schedule/generators/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Transfers;

// The peaks of ranges of `layers` under a generated schedule.
class Peaks {
 public:
  Peaks(const std::vector<LayerCost>& layers, const EndMemory& ends, const std::string& name,
        int devices, int micro_batches, Transfers transfers = Transfers::kSeparate,
        const Replication& replication = {}, double offload = 0.0)
      : layers_(layers),
        ends_(ends),
        peaks_(Make(name, devices, micro_batches, transfers, replication, offload)) {}

  StagePeaks* operator->() { return &peaks_; }

  schedule::StageMemory Memory(int first, int last, int stage) const {
    return LayOutStage(MemoryOf(absl::MakeConstSpan(layers_).subspan(first, last - first + 1)),
                       ends_, peaks_.position(stage));
  }
  int64_t AtLeast(int first, int last, int stage) {
    return peaks_.AtLeast(stage, Memory(first, last, stage));
  }
  int64_t PeakBytes(int first, int last, int stage) {
    return peaks_.PeakBytes(stage, Memory(first, last, stage)).value();
  }

 private:
  static StagePeaks Make(const std::string& name, int devices, int micro_batches,
                         Transfers transfers, const Replication& replication, double offload) {
    const schedule::Schedule made = GeneratedSchedule(name, micro_batches)(devices).value();
    return StagePeaks(LowerSchedules(made, replication, transfers, {}, offload).value());
  }

  std::vector<LayerCost> layers_;
  EndMemory ends_;
  StagePeaks peaks_;
};

TEST(StagePeaks, KnowsWhereEveryStageStands) {
  Peaks fused({}, {}, "1f1b", 3, 4);
  EXPECT_TRUE(fused->position(0).is_first);
  EXPECT_FALSE(fused->position(1).is_first || fused->position(1).is_last);
  EXPECT_TRUE(fused->position(2).is_last);
  EXPECT_FALSE(fused->position(1).splits_backward);
  EXPECT_TRUE(Peaks({}, {}, "zb-h1", 3, 4)->position(1).splits_backward);
}

TEST(StagePeaks, CountsMicroBatchesInFlight) {
  Peaks peaks({}, {}, "1f1b", 3, 8);
  for (int stage = 0; stage < 3; ++stage) EXPECT_EQ(peaks->in_flight(stage), 3 - stage);
  EXPECT_EQ(Peaks({}, {}, "gpipe", 3, 8)->in_flight(2), 8);
  // Three that leave or have just come, and the two that are fetched first.
  EXPECT_EQ(Peaks({}, {}, "gpipe", 3, 8, Transfers::kSeparate, {}, 1.0)->in_flight(2), 5);
}

TEST(StagePeaks, PeakIsThatOfThePlan) {
  std::mt19937 random(2);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  const Plan plan = {.first_layer = {0, 1, 4},
                     .num_layers = 6,
                     .schedule = GeneratedSchedule("1f1b", 4)(3).value()};
  const CompiledPlan report = CompilePlan(plan, layers, {}).value();
  Peaks peaks(layers, {}, "1f1b", 3, 4);
  EXPECT_EQ(peaks.PeakBytes(1, 3, 1), report.ranks[1].peak_bytes());
}

// This is the pre-condition of an exact search with bounds.
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
      Peaks peaks(layers, RandomEnds(random), name, devices, micro_batches,
                  i % 2 == 0 ? Transfers::kSeparate : Transfers::kGrouped, {1 << i % 3, 4},
                  0.5 * (i % 3));
      for (int stage = 0; stage < stages; ++stage) {
        const int64_t at_least_bytes = peaks.AtLeast(stage, stage + 2, stage);
        const int64_t peak_bytes = peaks.PeakBytes(stage, stage + 2, stage);
        ASSERT_GE(at_least_bytes, peaks->Bound(stage, peaks.Memory(stage, stage + 2, stage)));
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
  const int64_t peak_bytes = peaks.PeakBytes(1, 3, 1);
  EXPECT_EQ(peaks.AtLeast(1, 3, 1), peak_bytes);
}

TEST(StagePeaks, PeakOfARankCountsAllItsStages) {
  std::mt19937 random(5);
  const std::vector<LayerCost> layers = RandomLayers(random, 8);
  const Plan plan = {.first_layer = {0, 1, 4, 6},
                     .num_layers = 8,
                     .schedule = GeneratedSchedule("zb-v", 5)(2).value(),
                     .replication = {2, 2}};
  const CompiledPlan report = CompilePlan(plan, layers, {}).value();
  Peaks peaks(layers, {}, "zb-v", 2, 5, Transfers::kSeparate, plan.replication);
  const std::vector<schedule::StageMemory> stages = {peaks.Memory(0, 0, 0), peaks.Memory(1, 3, 1),
                                                     peaks.Memory(4, 5, 2), peaks.Memory(6, 7, 3)};
  for (schedule::Rank rank(0); rank.value() < 2; ++rank) {
    ASSERT_OK_AND_ASSIGN(const int64_t peak_bytes, peaks->RankPeakBytes(rank, stages));
    EXPECT_EQ(peak_bytes, report.of(rank).peak_bytes());
    EXPECT_LE(peaks->RankAtLeast(rank, stages), peak_bytes);
    // Cached, and the same.
    ASSERT_OK_AND_ASSIGN(const int64_t again_bytes, peaks->RankPeakBytes(rank, stages));
    EXPECT_EQ(again_bytes, peak_bytes);
  }
}

}  // namespace
}  // namespace stagecoach::partition
