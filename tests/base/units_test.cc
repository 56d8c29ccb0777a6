#include "base/text/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace stagecoach::base {
namespace {

using ::testing::HasSubstr;

TEST(ParseBytes, ReadsEveryUnit) {
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  EXPECT_EQ(*ParseBytes("17B"), 17);
  EXPECT_EQ(*ParseBytes("3kB"), 3'000);
  EXPECT_EQ(*ParseBytes("600MB"), 600'000'000);
  EXPECT_EQ(*ParseBytes("16GB"), 16'000'000'000);
  EXPECT_EQ(*ParseBytes("2TB"), 2'000'000'000'000);
  EXPECT_EQ(*ParseBytes("3KiB"), 3072);
  EXPECT_EQ(*ParseBytes("5MiB"), 5 << 20);
  EXPECT_EQ(*ParseBytes("1.5GiB"), 3ll << 29);
  EXPECT_EQ(*ParseBytes("1TiB"), 1ll << 40);
}

TEST(ParseBytes, IgnoresCaseAndSurroundingSpace) {
  EXPECT_EQ(*ParseBytes(" 16 gb "), 16'000'000'000);
  EXPECT_EQ(*ParseBytes("1KB"), 1000);
}

TEST(ParseBytes, IsExactForWholeNumbers) {
  EXPECT_EQ(*ParseBytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*ParseBytes("9007199254740993"), 9007199254740993);
  EXPECT_EQ(*ParseBytes("9007199254740.993kB"), 9007199254740993);
}

TEST(ParseBytes, RoundsFractionsOfAByte) {
  EXPECT_EQ(*ParseBytes("0.0015kB"), 2);
  EXPECT_EQ(*ParseBytes("1.4"), 1);
}

TEST(ParseBytes, RefusesOverflow) {
  for (const char* text : {"9223372036854775808", "9223372036854775807.5", "9223372036855TB",
                           "8388608TiB", "99999999999999999999999999"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseBytes, RefusesGarbageAndListsTheUnits) {
  for (const char* text : {"", " ", "-1", "+1", "MB", "1.", ".5GB", "1e3", "1 2", "1GBs", "0x10",
                           "1,000", "1..5", "nan", "inf"}) {
    EXPECT_THAT(std::string(ParseBytes(text).status().message()),
                HasSubstr("kB, MB, GB, TB, KiB, MiB, GiB, TiB"))
        << text;
  }
}

TEST(FormatBytes, UsesTheLargestUnitThatLeavesOne) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1000), "1.0 kB");
  EXPECT_EQ(FormatBytes(390'200'000), "390.2 MB");
  EXPECT_EQ(FormatBytes(16'000'000'000), "16.0 GB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "9223372.0 TB");
}

TEST(FormatBytes, NeverPrintsAThousandOfAUnit) {
  EXPECT_EQ(FormatBytes(999'949), "999.9 kB");
  EXPECT_EQ(FormatBytes(999'950), "1.0 MB");
  EXPECT_EQ(FormatBytes(999'999'999), "1.0 GB");
}

TEST(FormatBytes, KeepsTheSign) {
  EXPECT_EQ(FormatBytes(-1500), "-1.5 kB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-9223372.0 TB");
}

TEST(FormatBytes, IsReadBackWithinHalfADigit) {
  for (int64_t bytes = 1; bytes < int64_t{1} << 60; bytes = bytes * 3 + 1) {
    const double read = static_cast<double>(*ParseBytes(FormatBytes(bytes)));
    EXPECT_NEAR(read, static_cast<double>(bytes), 0.0501 * static_cast<double>(bytes)) << bytes;
  }
}

TEST(FormatCount, SeparatesThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-999), "-999");
  EXPECT_EQ(FormatCount(-123456), "-123,456");
  EXPECT_EQ(FormatCount(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(FormatPercent, HasAsManyDigitsAsAsked) {
  EXPECT_EQ(FormatPercent(0.12345), "12.3 %");
  EXPECT_EQ(FormatPercent(0.12345, 2), "12.35 %");
  EXPECT_EQ(FormatPercent(-0.5, 0), "-50 %");
  EXPECT_EQ(FormatChange(0.12345), "+12.3 %");
  EXPECT_EQ(FormatChange(-0.5), "-50.0 %");
}

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(base::FormatDuration(absl::ZeroDuration()), "0 ns");
  EXPECT_EQ(base::FormatDuration(absl::Nanoseconds(45)), "45 ns");
  EXPECT_EQ(base::FormatDuration(absl::Microseconds(1.5)), "1.5 us");
  EXPECT_EQ(base::FormatDuration(absl::Milliseconds(850)), "850 ms");
  EXPECT_EQ(base::FormatDuration(absl::Milliseconds(12345)), "12.3 s");
  EXPECT_EQ(base::FormatDuration(absl::Seconds(80)), "1m 20s");
  EXPECT_EQ(base::FormatDuration(absl::Minutes(185)), "3h 5m");
  EXPECT_EQ(base::FormatDuration(absl::Hours(52)), "2d 4h");
  EXPECT_EQ(base::FormatDuration(absl::InfiniteDuration()), "inf");
}

TEST(FormatDuration, CarriesIntoTheNextUnit) {
  EXPECT_EQ(base::FormatDuration(absl::Nanoseconds(999'600)), "1.0 ms");
  EXPECT_EQ(base::FormatDuration(absl::Microseconds(999'600)), "1.0 s");
  EXPECT_EQ(base::FormatDuration(absl::Milliseconds(59'960)), "1m 0s");
  EXPECT_EQ(base::FormatDuration(absl::Milliseconds(3'599'700)), "1h 0m");
}

TEST(FormatDuration, KeepsTheSign) {
  EXPECT_EQ(base::FormatDuration(absl::Milliseconds(-850)), "-850 ms");
  EXPECT_EQ(base::FormatDuration(-absl::InfiniteDuration()), "-inf");
}

}  // namespace
}  // namespace stagecoach::base
