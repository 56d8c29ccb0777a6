#include "engine/train/measure/step_time_monitor.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"

namespace stagecoach::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StepTimeMonitor, TellsOnceOfASlowRankOfItsProcess) {
  const partition::Plan plan = EvenPlan(SmallModel(), 3, "gpipe", 4, 4);
  const std::unique_ptr<RankGroup> group = RankGroup::Connect({.ranks = 3}, plan.schedule).value();
  std::vector<std::string> told;
  StepTimeMonitor watch(*group, [&](const std::string& sentence) { told.push_back(sentence); });
  int64_t step = 0;
  const auto steps = [&](int count, int64_t ns_of_last) {
    for (int i = 0; i < count; ++i) {
      watch.After(++step, 1'000'000'000,
                  [&](int device) -> int64_t { return device == 2 ? ns_of_last : 200'000'000; });
    }
  };
  steps(41, 200'000'000);
  EXPECT_THAT(told, IsEmpty());
  steps(19, 400'000'000);
  EXPECT_THAT(told, IsEmpty());
  steps(100, 400'000'000);
  EXPECT_THAT(told, ElementsAre(HasSubstr("rank 2 (stage 2, replica 0) is slow: its computing has "
                                          "taken 2.0 times")));
}

}  // namespace
}  // namespace stagecoach::engine
