#include "schedule/memory/stash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PeakStash, CountsUntilBAndTheRestUntilW) {
  const Schedule schedule = FromText({0}, 2, {"F0.0 B0.0 F0.1 B0.1 W0.0 W0.1"});
  EXPECT_THAT(PeakStash(schedule, std::vector<StageStash>{{.forward = 10, .weight = 0}}),
              ElementsAre(10));
  EXPECT_THAT(PeakStash(schedule, std::vector<StageStash>{{.forward = 10, .weight = 4}}),
              ElementsAre(14));
}

TEST(PeakStash, OfAFusedPassEndsWithIt) {
  const Schedule schedule = FromText({0}, 2, {"F0.0 BW0.0 F0.1 BW0.1"});
  EXPECT_THAT(PeakStash(schedule, std::vector<StageStash>{{.forward = 10, .weight = 4}}),
              ElementsAre(10));
}

TEST(PeakStash, AddsTheStagesOfARankEachWithItsOwnSize) {
  const Schedule schedule =
      FromText({0, 1, 1, 0}, 1, {"F0.0 F3.0 BW3.0 BW0.0", "F1.0 F2.0 BW2.0 BW1.0"});
  EXPECT_THAT(PeakStash(schedule, std::vector<StageStash>{{1, 0}, {2, 0}, {4, 0}, {8, 0}}),
              ElementsAre(9, 6));
}

TEST(PeakStash, DoesNotCountWhatIsOnTheHost) {
  const Schedule schedule =
      FromText({0}, 2, {"F0.0 OFFLOAD0.0 F0.1 RELEASE0.0 FETCH0.0 BW0.0 BW0.1 STEP0"});
  const std::vector<StageStash> stash = {{.forward = 10, .weight = 4}};
  EXPECT_THAT(StashAfter(schedule, stash), ElementsAre(ElementsAre(10, 10, 20, 10, 20, 10, 0, 0)));
  EXPECT_TRUE(CheckStash(schedule, stash, std::vector<double>{20}).ok());
  EXPECT_THAT(CheckStash(schedule, stash, std::vector<double>{19}).message(),
              HasSubstr("position 2 (stage 0 F micro-batch 1)"));
}

TEST(PeakStash, IsTheSameForALoweredSchedule) {
  for (const Generator& generator : Generators()) {
    const Schedule compute = generator.generate({3, 6}).value();
    const std::vector<StageStash> stash = UnitStash(compute.rank_of_stage, 0.5);
    EXPECT_EQ(PeakStash(Lower(compute).value(), stash), PeakStash(compute, stash));
  }
}

TEST(UnitStash, OfAllStagesOfARankIsOne) {
  const Schedule schedule = Interleaved({2, 4, 3}).value();
  for (const StageStash& stash : UnitStash(schedule.rank_of_stage, 0.6)) {
    EXPECT_DOUBLE_EQ(stash.forward, 1.0 / 3);
    EXPECT_DOUBLE_EQ(stash.weight, 0.2);
  }
}

TEST(CheckStash, AcceptsThePeakItself) {
  for (const Generator& generator : Generators()) {
    const Schedule schedule = generator.generate({3, 6}).value();
    const std::vector<StageStash> stash = UnitStash(schedule.rank_of_stage, 1.0 / 3);
    EXPECT_TRUE(CheckStash(schedule, stash, PeakStash(schedule, stash)).ok()) << generator.name;
  }
}

TEST(CheckStash, NamesWhereTheLimitIsExceededFirst) {
  const Schedule schedule = OneFOneB({4, 8}).value();
  const absl::Status status =
      CheckStash(schedule, UnitStash(schedule.rank_of_stage, 0), std::vector<double>{4, 2, 2, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1, position 2 (stage 1 F micro-batch 2): the rank then keeps 3, its "
                        "limit is 2"));
}

}  // namespace
}  // namespace stagecoach::schedule
