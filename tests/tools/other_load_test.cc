#include "tools/cli/other_load.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// A start of /proc/stat; columns as in proc(5).
constexpr char kStat[] =
    "cpu  1000 200 300 9000 400 50 60 70 0 0\n"
    "cpu0 1 2 4 1000 2000 8 16 32 64 128\n"
    "cpu1 100 200 400 1000 2000 800 1600 3200 64 128\n"
    "cpu10 7 0 0 0 0 0 0 0 0 0\n"
    "intr 8688370 38 9\n"
    "ctxt 2 3 4 5 6 7 8 9 10\n";

TEST(BusyTicks, AreThoseOfTheProcessorsInWhicheverState) {
  EXPECT_EQ(BusyTicks(kStat, {0}), 63);
  EXPECT_EQ(BusyTicks(kStat, {1}), 6300);
  EXPECT_EQ(BusyTicks(kStat, {0, 10}), 70);
  EXPECT_EQ(BusyTicks(kStat, {2}), 0);
  EXPECT_EQ(BusyTicks(kStat, {}), 0);
  EXPECT_EQ(BusyTicks("", {0}), 0);
  EXPECT_EQ(BusyTicks("cpu0 1 2 3\ncpux 1 2 3 4 5 6 7 8 9", {0}), 0);
}

TEST(OtherLoad, IsToldFromATenthOn) {
  EXPECT_EQ(DescribeOtherLoad(0.1), "");
  EXPECT_EQ(DescribeOtherLoad(0.349), "other programs took 35 % of the processors meanwhile");
}

TEST(OtherLoad, IsAShare) {
  const OtherLoad load;
  EXPECT_THAT(load.Share(), AllOf(Ge(0.0), Le(1.0)));
}

}  // namespace
}  // namespace stagecoach::tools
