#include "tools/stagecoach/launch/sweep_report.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/stagecoach/launch/sweep_grid.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::vector<SweptFlag> kFlags = {{"width", {"8", "16"}}, {"seed", {"1", "2", "3"}}};

SweptRun Trained(const SweptValues& values, double loss) {
  return {.values = values, .metrics = {{"test_loss", loss}}};
}

TEST(SweptGroup, HasTheMeanAndTheDeviationOfTheSample) {
  std::vector<SweptRun> runs = {Trained({"8", "1"}, 1.0), Trained({"8", "2"}, 2.0),
                                Trained({"16", "1"}, 5.0), Trained({"8", "3"}, 6.0)};
  runs.push_back({.values = {"16", "2"}, .status = 65, .failure = "why"});
  const std::vector<SweptGroup> groups = GroupOverSeeds(kFlags, runs);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].runs.size(), 3U);
  EXPECT_EQ(groups[0].Mean("test_loss"), 3.0);
  EXPECT_DOUBLE_EQ(*groups[0].Deviation("test_loss"), std::sqrt((4.0 + 1.0 + 9.0) / 2));
  EXPECT_EQ(groups[1].runs.size(), 1U);
  EXPECT_EQ(groups[1].Mean("test_loss"), 5.0);
  EXPECT_EQ(groups[1].Deviation("test_loss"), std::nullopt);
  EXPECT_EQ(groups[1].Mean("other"), std::nullopt);
  EXPECT_EQ(BestOf(groups, "test_loss"), &groups[0]);
  EXPECT_THAT(SweepText(kFlags, runs, "test_loss"),
              AllOf(HasSubstr("failed\n"), HasSubstr("3 ± 2.6"),
                    HasSubstr("best by test loss: width=8\n")));
}

TEST(SweptGroup, IsBestByTheDirectionOfTheMetricAndNeverByNan) {
  std::vector<SweptRun> runs = {{.values = {"8", "1"}, .metrics = {{"test_accuracy", 0.5}}},
                                {.values = {"16", "1"}, .metrics = {{"test_accuracy", 0.75}}}};
  const std::vector<SweptFlag> flags = {{"width", {"8", "16", "32"}}, {"seed", {"1"}}};
  EXPECT_EQ(BestOf(GroupOverSeeds(flags, runs), "test_loss"), nullptr);
  runs.push_back({.values = {"32", "1"},
                  .metrics = {{"test_accuracy", std::numeric_limits<double>::quiet_NaN()}}});
  const std::vector<SweptGroup> groups = GroupOverSeeds(flags, runs);
  EXPECT_EQ(BestOf(groups, "test_accuracy"), &groups[1]);
}

TEST(SweptRun, HasTheMetricsOfItsLastEvaluation) {
  SweptRun run;
  ReadMetrics(
      "{\"event\":\"epoch\",\"loss\":3}\nno JSON\n"
      "{\"event\":\"evaluation\",\"epoch\":2,\"step\":7,\"loss\":1.5,\"test_f1\":0.25,"
      "\"evaluation_seconds\":1,\"samples_per_second\":9,\"time\":\"now\"}\n"
      "{\"event\":\"end\",\"steps\":7}\n",
      run);
  EXPECT_THAT(run.metrics, ElementsAre(Pair("loss", 1.5), Pair("test_f1", 0.25)));
}

TEST(SweptFlags, AreListsOrRanges) {
  EXPECT_THAT(ParseSweptFlag("seed=-1..2")->values, ElementsAre("-1", "0", "1", "2"));
  EXPECT_THAT(ParseSweptFlag("--model=a..b,c")->values, ElementsAre("a..b", "c"));
  EXPECT_EQ(ParseSweptFlag("--model=a")->name, "model");
  EXPECT_EQ(Combinations(kFlags).size(), 6U);
  EXPECT_THAT(Combinations(kFlags)[1], ElementsAre("8", "2"));
  EXPECT_EQ(Describe(kFlags, {"8", "2"}), "width=8 seed=2");
}

}  // namespace
}  // namespace stagecoach::tools
