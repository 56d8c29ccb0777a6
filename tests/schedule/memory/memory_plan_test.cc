#include "schedule/memory/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/refusals.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::testing::HasSubstr;

std::vector<Block> BlocksOf(const MemoryPlan& plan, BlockKind kind, int stage) {
  std::vector<Block> blocks;
  for (const Block& block : plan.blocks) {
    if (block.kind == kind && block.stage == StageId(stage)) blocks.push_back(block);
  }
  return blocks;
}

// Returns [first, last] of each micro-batch's block of a kind.
std::vector<std::pair<int, int>> LivesOf(const MemoryPlan& plan, BlockKind kind, int stage) {
  std::vector<std::pair<int, int>> lives;
  for (const Block& block : BlocksOf(plan, kind, stage)) {
    lives.emplace_back(block.first, block.last);
  }
  return lives;
}

using Lives = std::vector<std::pair<int, int>>;

// Rank 0 of 1F1B with two ranks and micro-batches:
//   0 F0, 1 RECV_B0, 2 SEND_F0, 3 F1, 4 RECV_B1, 5 SEND_F1, 6 BW0, 7 BW1, 8 STEP
TEST(PlanMemory, EqualsTheExampleByHand) {
  const Schedule schedule = Lower(OneFOneB({2, 2}).value()).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  stages[0].weight_stash_bytes = 0;
  const MemoryPlan plan = PlanMemory(schedule, Rank(0), stages).value();

  const StageId s(0);
  const MicroBatch a(0);
  const MicroBatch b(1);
  EXPECT_THAT(plan.blocks,
              ::testing::ElementsAre(Block{BlockKind::kInput, s, a, 256, 4096, 0, 6},
                                     Block{BlockKind::kOutput, s, a, 512, 2048, 0, 5},
                                     Block{BlockKind::kStash, s, a, 1024, 0, 0, 6},
                                     Block{BlockKind::kOutputGradient, s, a, 512, 2560, 1, 6},
                                     Block{BlockKind::kInput, s, b, 256, 4352, 3, 7},
                                     Block{BlockKind::kOutput, s, b, 512, 3072, 3, 8},
                                     Block{BlockKind::kStash, s, b, 1024, 1024, 3, 7},
                                     Block{BlockKind::kOutputGradient, s, b, 512, 3584, 4, 7}));
  EXPECT_EQ(plan.dynamic_bytes, 4608);
  EXPECT_EQ(plan.peak_live_bytes, 4608);
  EXPECT_EQ(plan.peak_stash_bytes, 2 * (256 + 1024));
}

// Rank 1 of the same schedule:
//   0 RECV_F0, 1 F0, 2 RECV_F1, 3 BW0, 4 SEND_B0, 5 F1, 6 BW1, 7 SEND_B1, 8 STEP
TEST(PlanMemory, LastStageTakesItsOutputGradientFromTheLossInForward) {
  const Schedule schedule = Lower(OneFOneB({2, 2}).value()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kInput, 1), (Lives{{0, 3}, {2, 6}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutput, 1), (Lives{{1, 1}, {5, 5}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutputGradient, 1), (Lives{{1, 3}, {5, 6}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kInputGradient, 1), (Lives{{3, 7}, {6, 8}}));
}

TEST(PlanMemory, OutputReadByItsOwnBackwardIsKeptForIt) {
  const Schedule schedule = Lower(OneFOneB({2, 2}).value()).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  stages[1].output_last_use = LastUse::kBackwardInput;
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), stages).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutput, 1), (Lives{{1, 3}, {5, 6}}));
}

TEST(PlanMemory, InputReadByForwardAloneIsFreeAfterIt) {
  const Schedule schedule = Lower(OneFOneB({2, 2}).value()).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  stages[1].input_last_use = LastUse::kForward;
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), stages).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kInput, 1), (Lives{{0, 1}, {2, 5}}));
  EXPECT_EQ(plan.peak_stash_bytes, 1024 + 768);
}

// Rank 1 of HandwrittenH1:
//   0 RECV_F0, 1 F0, 2 RECV_F1, 3 B0, 4 SEND_B0, 5 F1, 6 B1, 7 RECV_F2, 8 SEND_B1, 9 W0, 10 F2,
//   11 B2, 12 SEND_B2, 13 W1, 14 W2, 15 STEP
TEST(PlanMemory, SplitBackwardKeepsStashUntilBAndWeightStashUntilW) {
  const Schedule schedule = Lower(HandwrittenH1()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kStash, 1), (Lives{{1, 3}, {5, 6}, {10, 11}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kWeightStash, 1), (Lives{{1, 9}, {5, 13}, {10, 14}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kGradientStash, 1), (Lives{{3, 9}, {6, 13}, {11, 14}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kInput, 1), (Lives{{0, 9}, {2, 13}, {7, 14}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutputGradient, 1), (Lives{{1, 3}, {5, 6}, {10, 11}}));
}

TEST(PlanMemory, OutputGradientReadByWIsKeptUntilW) {
  const Schedule schedule = Lower(HandwrittenH1()).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  stages[1].output_gradient_last_use = LastUse::kBackwardWeight;
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), stages).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutputGradient, 1), (Lives{{1, 9}, {5, 13}, {10, 14}}));
}

TEST(PlanMemory, FusedBackwardHasNoGradientStash) {
  const Schedule schedule = Lower(OneFOneB({3, 5}).value()).value();
  for (int r = 0; r < 3; ++r) {
    const MemoryPlan plan = PlanMemory(schedule, Rank(r), TypicalStages(schedule)).value();
    EXPECT_TRUE(BlocksOf(plan, BlockKind::kGradientStash, r).empty());
  }
}

// Reductions run one after the other.
TEST(PlanMemory, ReductionsOfARankShareOneArea) {
  const Schedule schedule = Lower(HandwrittenV(), {.reduce_gradients = true}).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  const int64_t without = PlanMemory(schedule, Rank(0), stages).value().resident_bytes;
  stages[0].reduction_bytes = 256;
  stages[1].reduction_bytes = 4096;  // on the other rank
  stages[3].reduction_bytes = 1000;
  EXPECT_EQ(ReductionAreaBytes(stages, schedule, Rank(0)), 1024);
  EXPECT_EQ(PlanMemory(schedule, Rank(0), stages).value().resident_bytes, without + 1024);
  stages[3].reduction_bytes = -1;
  EXPECT_THAT(std::string(PlanMemory(schedule, Rank(0), stages).status().message()),
              HasSubstr("reduction_bytes"));
}

// The list of the rank: 0 F0, 1 F1, 2 BW0, 3 B1, 4 W1, 5 STEP.
TEST(PlanMemory, FusedBackwardOfAStageThatAlsoSplitsHasAGradientStashOfItsOwn) {
  const Schedule schedule = Lower(FromText({0}, 2, {"F0.0 F0.1 BW0.0 B0.1 W0.1"})).value();
  StageMemory memory;
  memory.gradient_stash_bytes = 512;
  const MemoryPlan plan = PlanMemory(schedule, Rank(0), {memory}).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kGradientStash, 0), (Lives{{2, 2}, {3, 4}}));
}

TEST(PlanMemory, GradientStashWithinAFusedBackwardDoesNotCountAsStash) {
  const Schedule schedule =
      Lower(FromText({0, 0}, 2, {"F0.0 F1.0 F0.1 F1.1 B1.0 BW0.0 W1.0 BW1.1 B0.1 W0.1"})).value();
  std::vector<StageMemory> stages(2);
  stages[0].gradient_stash_bytes = 512;
  stages[1].gradient_stash_bytes = 1024;
  const MemoryPlan plan = PlanMemory(schedule, Rank(0), stages).value();
  EXPECT_EQ(plan.peak_live_bytes, 1024 + 512);
  EXPECT_EQ(plan.peak_stash_bytes, 1024);
}

// Rank 1 of HandwrittenV:
//   0 RECV_F1.0, 1 F1.0, 2 RECV_F1.1, 3 F2.0, 4 SEND_F2.0, 5 F1.1, 6 RECV_B2.0, 7 F2.1,
//   8 SEND_F2.1, 9 B2.0, 10 B1.0, 11 RECV_B2.1, 12 SEND_B1.0, 13 W2.0, 14 B2.1, 15 B1.1,
//   16 SEND_B1.1, 17 W1.0, 18 W2.1, 19 W1.1, 20 STEP1, 21 STEP2
TEST(PlanMemory, NeighborsOnOneRankShareTheActivationBetweenThem) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutput, 1), (Lives{{1, 13}, {5, 18}}));
  EXPECT_TRUE(BlocksOf(plan, BlockKind::kInput, 2).empty());
}

TEST(PlanMemory, NeighborsOnOneRankShareTheGradientBetweenThem) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kInputGradient, 2), (Lives{{9, 10}, {14, 15}}));
  EXPECT_TRUE(BlocksOf(plan, BlockKind::kOutputGradient, 1).empty());
}

TEST(PlanMemory, SharedBufferIsAsLargeAsTheLargerSideSays) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  std::vector<StageMemory> stages = TypicalStages(schedule);
  stages[2].input_bytes = 5120;
  stages[1].output_gradient_bytes = 2560;
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), stages).value();
  EXPECT_EQ(BlocksOf(plan, BlockKind::kOutput, 1)[0].bytes, 5120);
  EXPECT_EQ(BlocksOf(plan, BlockKind::kInputGradient, 2)[0].bytes, 2560);
}

TEST(PlanMemory, SendsOfOneLaneDoNotReleaseBuffersOfAnother) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutput, 2), (Lives{{3, 8}, {7, 21}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kInputGradient, 1), (Lives{{10, 16}, {15, 21}}));
}

// Rank 1 of two: 0 RECV_F0, 1 RECV_F1, 2 F0, 3 F1.
TEST(PlanMemory, ForwardOnlyKeepsNothingPastForward) {
  const Schedule schedule = Lower(ForwardOnly({Rank(0), Rank(1)}, 2, 2).value()).value();
  const MemoryPlan plan = PlanMemory(schedule, Rank(1), TypicalStages(schedule)).value();
  EXPECT_EQ(LivesOf(plan, BlockKind::kInput, 1), (Lives{{0, 2}, {1, 3}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kOutput, 1), (Lives{{2, 2}, {3, 3}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kStash, 1), (Lives{{2, 2}, {3, 3}}));
  EXPECT_EQ(LivesOf(plan, BlockKind::kWeightStash, 1), (Lives{{2, 2}, {3, 3}}));
  EXPECT_EQ(plan.blocks.size(), 8u);
  EXPECT_EQ(plan.peak_stash_bytes, 0);
}

// One stage: the weight stash stays from B until W, and nothing at the end.
TEST(PlanMemory, TellsWhatIsStashedDuringAndAfterEachAction) {
  const Schedule schedule = FromText({0}, 2, {"F0.0 F0.1 B0.0 W0.0 BW0.1 STEP0"});
  StageMemory memory;
  memory.stash_bytes = 1024;
  memory.weight_stash_bytes = 512;
  memory.gradient_stash_bytes = 256;
  const MemoryPlan plan = PlanMemory(schedule, Rank(0), std::vector<StageMemory>{memory}).value();
  EXPECT_THAT(plan.stash_bytes_after,
              ::testing::ElementsAre(1536, 3072, 1536 + 512 + 256, 1536, 0, 0));
  EXPECT_THAT(plan.stash_bytes_during,
              ::testing::ElementsAre(1536, 3072, 3072 + 256, 1536 + 512 + 256, 1536, 0));
}

// Rank 1 at its worst keeps one micro-batch between F and B and one more between B and W: the
// published (p - r) M_B + r M_W; and B of the former claims what it keeps for W before it frees
// its stash.
TEST(PlanMemory, StashOfZeroBubbleH1IsThatOfTheFormula) {
  constexpr int64_t kUntilB = 256 + 1024 + 768;
  constexpr int64_t kUntilW = 256 + 768 + 256;
  constexpr int64_t kBothWhileBRuns = 256;
  const Schedule schedule = Lower(HandwrittenH1()).value();
  const std::vector<StageMemory> stages = TypicalStages(schedule);
  EXPECT_EQ(PlanMemory(schedule, Rank(0), stages)->peak_stash_bytes, 2 * kUntilB + kBothWhileBRuns);
  EXPECT_EQ(PlanMemory(schedule, Rank(1), stages)->peak_stash_bytes,
            kUntilB + kUntilW + kBothWhileBRuns);
}

TEST(PlanMemory, ResidentIsTheSumAndWorkspaceTheLargestOfTheRanksStages) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  std::vector<StageMemory> stages(4);
  stages[0].parameter_bytes = 1;
  stages[0].gradient_bytes = 256;
  stages[0].optimizer_bytes = 257;
  stages[0].workspace_bytes = 100;
  stages[1].workspace_bytes = 100000;
  stages[3].other_resident_bytes = 10;
  stages[3].workspace_bytes = 300;
  const MemoryPlan plan = PlanMemory(schedule, Rank(0), stages).value();
  EXPECT_EQ(plan.resident_bytes, 256 + 256 + 512 + 256);
  EXPECT_EQ(plan.workspace_bytes, 512);
  EXPECT_EQ(plan.peak_bytes(), plan.resident_bytes + plan.workspace_bytes);
}

absl::Status PlanStatus(const Schedule& schedule, const std::vector<StageMemory>& stages,
                        Rank rank = Rank(0)) {
  return PlanMemory(schedule, rank, stages).status();
}

TEST(PlanMemory, RefusesWhatDoesNotFitTogether) {
  const Schedule one = Lower(OneFOneB({1, 2}).value()).value();
  const Schedule two = Lower(OneFOneB({2, 2}).value()).value();
  const std::vector<StageMemory> stages = {TypicalStage(true), TypicalStage(false)};
  StageMemory read_by_forward = TypicalStage(true);
  read_by_forward.output_gradient_last_use = LastUse::kForward;
  ExpectRefusals({
      {PlanStatus(OneFOneB({2, 2}).value(), stages), "not lowered: stage 0 has no STEP"},
      {PlanStatus(ForwardOnly({Rank(0), Rank(1)}, 2, 2).value(), stages),
       "not lowered: stage 0 SEND_F micro-batch 0 is missing"},
      {PlanStatus(two, TypicalStages(two), Rank(2)), "rank 2 of a schedule with 2 ranks"},
      {PlanStatus(two, {TypicalStage(true)}), "2 stages, but the memory of 1"},
      {PlanStatus(one, {{.stash_bytes = -1}}), "memory of stage 0: stash_bytes is -1"},
      {PlanStatus(one, {{.stash_bytes = kMaxSizeBytes + 1}}), "memory of stage 0: stash_bytes is"},
      {PlanStatus(one, {TypicalStage(false)}), "the first stage has no input gradient"},
      {PlanStatus(one, {read_by_forward}), "output_gradient_last_use is kForward"},
  });
}

}  // namespace
}  // namespace stagecoach::schedule
