#include "partition/plan/rank_report.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "partition/search/balance_stages.h"
#include "schedule/generators/generators.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::CollectiveMemory;
using schedule::LastUse;
using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;
using schedule::StageMemory;

// Chooses one of two, so that neighbors are often equal.
std::vector<StageMemory> RandomMemory(std::mt19937& random, const Schedule& schedule) {
  std::vector<StageMemory> kinds(2);
  for (StageMemory& memory : kinds) {
    for (int64_t* bytes : {&memory.parameter_bytes, &memory.workspace_bytes, &memory.input_bytes,
                           &memory.output_bytes, &memory.stash_bytes, &memory.weight_stash_bytes,
                           &memory.gradient_stash_bytes, &memory.output_gradient_bytes,
                           &memory.input_gradient_bytes}) {
      *bytes = static_cast<int64_t>(random() % 4) * 700;
    }
    memory.input_last_use = random() % 2 == 0 ? LastUse::kForward : LastUse::kBackwardWeight;
  }
  std::vector<StageMemory> stages;
  for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    stages.push_back(kinds[random() % 5 == 0 ? 1 : 0]);
    if (schedule.is_first(stage)) stages.back().input_gradient_bytes = 0;
  }
  return stages;
}

// Ranks that look the same share their plan, which must equal what each has alone.
TEST(RankReport, OfAllRanksIsThatOfEach) {
  std::mt19937 random(1);
  for (const schedule::Generator& generator : schedule::Generators()) {
    SCOPED_TRACE(generator.name);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         GeneratedSchedule(std::string(generator.name), 16)(8));
    const CollectiveMemory collectives = {.norm_bytes = 8, .result_bytes = 16};
    ASSERT_OK_AND_ASSIGN(const LoweredSchedules lowered,
                         LowerSchedules(schedule, {}, schedule::Transfers::kSeparate, collectives));
    for (int i = 0; i < 20; ++i) {
      const std::vector<StageMemory> stages = RandomMemory(random, schedule);
      ASSERT_OK_AND_ASSIGN(const std::vector<RankReport> all,
                           ReportRanks(lowered.training, lowered.evaluation, stages, collectives));
      ASSERT_EQ(all.size(), static_cast<size_t>(schedule.num_ranks()));
      for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
        ASSERT_OK_AND_ASSIGN(const RankReport own, ReportRank(lowered.training, lowered.evaluation,
                                                              rank, stages, collectives));
        const RankReport& shared = all[static_cast<size_t>(rank.value())];
        EXPECT_EQ(shared.stages, own.stages);
        EXPECT_EQ(shared.training, own.training) << rank.value();
        EXPECT_EQ(shared.evaluation, own.evaluation) << rank.value();
        EXPECT_EQ(shared.training.blocks, own.training.blocks) << rank.value();
        EXPECT_EQ(shared.evaluation.blocks, own.evaluation.blocks) << rank.value();
      }
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
