#include "tools/stagecoach/bench/bench_comparison.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/bench/sample_results.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

BenchComparison Compared(std::vector<double> before, std::vector<double> after) {
  return CompareBenches(SampleResults({SampleRow("1f1b", 2, std::move(before))}),
                        SampleResults({SampleRow("1f1b", 2, std::move(after))}));
}

TEST(BenchComparison, CallsNoiseWhatTheIntervalsAllow) {
  const std::vector<double> before = {98, 100, 102};
  EXPECT_EQ(Compared(before, {95, 97}).changes[0].verdict, BenchVerdict::kFaster);
  EXPECT_EQ(Compared(before, {95, 98}).changes[0].verdict, BenchVerdict::kNoise);
  EXPECT_EQ(Compared(before, {101, 130}).changes[0].verdict, BenchVerdict::kNoise);
  EXPECT_EQ(Compared(before, {102, 130}).changes[0].verdict, BenchVerdict::kNoise);
  EXPECT_EQ(Compared(before, {103, 130}).changes[0].verdict, BenchVerdict::kSlower);
  EXPECT_FALSE(Compared(before, {95, 97}).is_worse());
  EXPECT_FALSE(Compared(before, {101, 130}).is_worse());
  EXPECT_TRUE(Compared(before, {103, 130}).is_worse());
}

TEST(BenchComparison, TellsWhatCanNoLongerBeRun) {
  const BenchResults runs = SampleResults({SampleRow("gpipe", 2, {100})});
  const BenchResults fails = SampleResults({BrokenRow("gpipe")});
  EXPECT_EQ(CompareBenches(runs, fails).changes[0].verdict, BenchVerdict::kBroken);
  EXPECT_TRUE(CompareBenches(runs, fails).is_worse());
  EXPECT_EQ(CompareBenches(fails, runs).changes[0].verdict, BenchVerdict::kMended);
  EXPECT_FALSE(CompareBenches(fails, runs).is_worse());
  EXPECT_EQ(CompareBenches(fails, fails).changes[0].verdict, BenchVerdict::kNoise);
}

TEST(BenchComparison, ListsWhatOnlyOneHas) {
  const BenchComparison comparison =
      CompareBenches(SampleResults({SampleRow("1f1b", 2, {1}), SampleRow("gpipe", 2, {1})}),
                     SampleResults({SampleRow("zb-v", 2, {1}), SampleRow("1f1b", 2, {1})}));
  EXPECT_THAT(comparison.changes, SizeIs(1));
  ASSERT_THAT(comparison.removed, SizeIs(1));
  EXPECT_EQ(comparison.removed[0].schedule, "gpipe");
  ASSERT_THAT(comparison.added, SizeIs(1));
  EXPECT_EQ(comparison.added[0].schedule, "zb-v");
  EXPECT_FALSE(comparison.is_worse());
  EXPECT_THAT(ToText(comparison), AllOf(HasSubstr("\nonly before: default, fp32, gpipe, 2 devices"),
                                        HasSubstr("\nonly after: default, fp32, zb-v, 2 devices")));
}

TEST(BenchComparison, TellsOtherMachinesAndOptions) {
  const BenchResults one = SampleResults({SampleRow("1f1b", 2, {1})});
  BenchResults other = one;
  other.machine.date = "2027-01-01";
  other.machine.stagecoach = "0.2.0";  // what may differ between files that are compared
  EXPECT_FALSE(CompareBenches(one, other).is_other_machine);
  EXPECT_THAT(ToText(CompareBenches(one, other)), Not(HasSubstr("different")));
  other.machine.onednn = "3.0.0";
  other.options = "--layers 9";
  EXPECT_TRUE(CompareBenches(one, other).is_other_machine);
  EXPECT_THAT(ToText(CompareBenches(one, other)),
              AllOf(HasSubstr("different machines"), HasSubstr("different options")));
}

TEST(BenchComparison, IsATable) {
  EXPECT_EQ(ToText(Compared({100}, {50})),
            "default, fp32, 1 replica, batch 64, 1 thread\n"
            "\n"
            "schedule  devices  micro-batches  before, ms  after, ms   change\n"
            "--------  -------  -------------  ----------  ---------  -------  ------\n"
            "1f1b            2              8         100         50  -50.0 %  faster\n");
  const nlohmann::ordered_json json = ToJson(Compared({100}, {50}));
  EXPECT_EQ(json["rows"][0]["change"], -0.5);
  EXPECT_EQ(json["rows"][0]["verdict"], "faster");
  EXPECT_EQ(json["rows"][0]["schedule"], "1f1b");
  EXPECT_EQ(json["other_machine"], false);
  EXPECT_THAT(json["removed"], IsEmpty());
}

}  // namespace
}  // namespace stagecoach::tools
