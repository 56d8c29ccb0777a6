#include "tools/stagecoach/terminal/other_load.h"

#include <cstdint>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

// The beginning of /proc/stat; columns as in proc(5).
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

// Returns the share of others over `time_ms`, in which the processors were busy for `busy_ms` in
// all and this process for `own_ms`. Like the system's, the counts do not begin at 0.
double Share(int64_t time_ms, int64_t busy_ms, int64_t own_ms, int64_t processors) {
  const LoadSample start = {.time = absl::FromUnixSeconds(1'700'000'000),
                            .busy = absl::Seconds(5000),
                            .own = absl::Seconds(30)};
  const LoadSample end = {.time = start.time + absl::Milliseconds(time_ms),
                          .busy = start.busy + absl::Milliseconds(busy_ms),
                          .own = start.own + absl::Milliseconds(own_ms)};
  return ShareOfOthers(start, end, processors);
}

TEST(OtherLoad, IsWhatOthersTook) {
  EXPECT_DOUBLE_EQ(Share(1000, 250, 0, 1), 0.25);
  EXPECT_DOUBLE_EQ(Share(2000, 2000, 1500, 1), 0.25);
}

TEST(OtherLoad, IsNotWhatThisProcessTook) { EXPECT_EQ(Share(1000, 1000, 1000, 1), 0.0); }

TEST(OtherLoad, IsOfTheTimeOfAllProcessors) {
  EXPECT_DOUBLE_EQ(Share(1000, 3000, 1000, 4), 0.5);
  EXPECT_DOUBLE_EQ(Share(1000, 4000, 0, 4), 1.0);
}

// Own time is counted more finely than busy time, which may be short or over by up to one tick.
TEST(OtherLoad, IsFromNoneToAllHoweverCoarselyBusyTimeIsCounted) {
  EXPECT_EQ(Share(1000, 990, 995, 1), 0.0);
  EXPECT_EQ(Share(1000, 1010, 0, 1), 1.0);
}

TEST(OtherLoad, IsNoneWhereNothingIsKnown) {
  EXPECT_EQ(Share(199, 190, 0, 1), 0.0);
  EXPECT_DOUBLE_EQ(Share(200, 190, 0, 1), 0.95);
  EXPECT_EQ(Share(0, 0, 0, 1), 0.0);
  EXPECT_EQ(Share(1000, 0, 500, 0), 0.0);
}

}  // namespace
}  // namespace stagecoach::tools
