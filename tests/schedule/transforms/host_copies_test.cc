#include "schedule/transforms/host_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/memory/stash.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;

// Of one rank with one stage.
std::string WithCopies(int micro_batches, const std::string& list, double share) {
  Schedule schedule = FromText({0}, micro_batches, {list});
  AddHostCopies(share, schedule);
  return ToText(schedule.actions[0]);
}

TEST(AddHostCopies, GivesEachCopyTwoOperations) {
  EXPECT_EQ(
      WithCopies(6, "F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 BW0.0 BW0.1 BW0.2 BW0.3 BW0.4 BW0.5 STEP0", 1.0),
      "F0.0 OFFLOAD0.0 F0.1 OFFLOAD0.1 F0.2 RELEASE0.0 OFFLOAD0.2 F0.3 RELEASE0.1 OFFLOAD0.3 "
      "FETCH0.0 F0.4 RELEASE0.2 OFFLOAD0.4 FETCH0.1 F0.5 RELEASE0.3 OFFLOAD0.5 FETCH0.2 BW0.0 "
      "RELEASE0.4 FETCH0.3 BW0.1 RELEASE0.5 FETCH0.4 BW0.2 FETCH0.5 BW0.3 BW0.4 BW0.5 STEP0");
}

TEST(AddHostCopies, LeavesAStashThatIsNeededSoon) {
  const std::string list = "F0.0 F0.1 F0.2 F0.3 F0.4 BW0.0 BW0.1 BW0.2 BW0.3 BW0.4 STEP0";
  EXPECT_EQ(WithCopies(5, list, 1.0), list);
}

TEST(AddHostCopies, MovesAPartOfThem) {
  const std::string list =
      "F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 BW0.0 BW0.1 BW0.2 BW0.3 BW0.4 BW0.5 STEP0";
  const auto moved = [&](double share) {
    const Schedule schedule = FromText({0}, 6, {WithCopies(6, list, share)});
    std::vector<int> micro_batches;
    for (const Action& action : schedule.actions[0]) {
      if (action.op == Op::kOffload) micro_batches.push_back(action.micro_batch.value());
    }
    return micro_batches;
  };
  EXPECT_THAT(moved(0.0), ElementsAre());
  EXPECT_THAT(moved(0.3), ElementsAre(2, 5));
  EXPECT_THAT(moved(0.5), ElementsAre(1, 3, 5));
  EXPECT_THAT(moved(0.8), ElementsAre(1, 2, 3, 4, 5));
}

// Of two stages of a rank, the first one keeps its stashes longest.
TEST(AddHostCopies, TakesTheStageThatKeepsLongestFirst) {
  Schedule lowered = Lower(LoopedBfs({1, 6, 2}).value(), {.offload = 0.5}).value();
  std::map<StageId, int> moved;
  for (const Action& action : lowered.actions[0]) {
    if (action.op == Op::kOffload) ++moved[action.stage];
  }
  EXPECT_EQ(moved[StageId(0)], 6);
  EXPECT_EQ(moved[StageId(1)], 0);
}

TEST(AddHostCopies, DoesNothingToASchedulesOwnCopiesOrWithoutBackwardPasses) {
  Schedule own = Lower(GPipe({2, 8}).value(), {.offload = 0.3}).value();
  const Schedule before = own;
  AddHostCopies(1.0, own);
  EXPECT_EQ(own, before);
  const Schedule forward = ForwardOnly({Rank(0)}, 1, 20).value();
  EXPECT_EQ(Lower(forward, {.offload = 1.0}).value(), Lower(forward).value());
}

// The order of everything else, and the proof, stay; passes that overlap are not parted.
TEST(AddHostCopies, KeepsEverySchedulePerformable) {
  int64_t moved = 0;
  for (const Generator& generator : Generators()) {
    for (const auto& [ranks, micro_batches] :
         {std::pair(1, 9), std::pair(3, 12), std::pair(6, 12)}) {
      const absl::StatusOr<Schedule> compute = generator.generate({ranks, micro_batches});
      if (!compute.ok()) continue;
      for (const Transfers transfers : {Transfers::kSeparate, Transfers::kGrouped}) {
        const LoweringOptions plain = {
            .reduce_gradients = true, .exchange_norms = true, .transfers = transfers};
        const Schedule without = Lower(*compute, plain).value();
        for (const double share : {0.4, 1.0}) {
          LoweringOptions options = plain;
          options.offload = share;
          Schedule lowered = Lower(*compute, options).value();
          EXPECT_OK(Validate(lowered, transfers)) << generator.name;
          for (std::vector<Action>& list : lowered.actions) {
            moved += std::erase_if(list, [](const Action& a) { return MovesStash(a.op); });
          }
          EXPECT_EQ(lowered, without) << generator.name;
        }
      }
    }
  }
  EXPECT_GT(moved, 1000);
}

// With a link that needs no more than the shorter pass for a stash: half of the memory of 1F1B or
// less at no cost, as PipeOffload reports for full offload, and a quarter of zero bubbles' with a
// V.
TEST(AddHostCopies, HalvesTheStashAtNoCost) {
  const DeviceTimes device = {
      .forward_ns = 1000, .backward_input_ns = 1000, .backward_weight_ns = 1000};
  for (const auto& [name, most] : {std::pair("1f1b", 4.0), std::pair("zb-h1", 4.0),
                                   std::pair("gpipe", 5.0), std::pair("zb-v", 2.0)}) {
    const Schedule compute = Generate(name, {.ranks = 8, .micro_batches = 32}).value();
    Costs costs = UniformCosts(compute.rank_of_stage, device, 0);
    costs.host_link.link.bytes_per_second = 1e9;
    for (StageTimes& times : costs.stages) times.host_copy_bytes = times.forward_ns;
    const Schedule kept = Lower(compute).value();
    const Schedule moved = Lower(compute, {.offload = 1.0}).value();
    const auto step_ns = [&](const Schedule& lowered) {
      return SimulateDurations(lowered, costs, Sends::kRendezvous)->step_ns;
    };
    EXPECT_EQ(step_ns(moved), step_ns(kept)) << name;
    const std::vector<StageStash> stash = UnitStash(compute.rank_of_stage, 0.0);
    EXPECT_THAT(PeakStash(moved, stash), Each(Le(most))) << name;
    EXPECT_GE(PeakStash(kept, stash)[0], 8.0) << name;
  }
}

}  // namespace
}  // namespace stagecoach::schedule
