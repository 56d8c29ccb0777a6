#include "tools/stagecoach/bench/bench_results.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/tools/bench/sample_results.h"

namespace stagecoach::tools {
namespace {

using stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

// Returns the values 1 to n.
std::vector<double> UpTo(size_t n) {
  std::vector<double> values(n);
  std::iota(values.rbegin(), values.rend(), 1.0);
  return values;
}

TEST(MedianOf, IsTheMiddle) {
  EXPECT_EQ(MedianOf({7}), 7);
  EXPECT_EQ(MedianOf({9, 1}), 5);
  EXPECT_EQ(MedianOf({9, 1, 2}), 2);
}

// The bounds are from tables of the sign test, such as Conover's.
TEST(MedianInterval, HoldsTheMedianIn95OfAHundredCases) {
  const struct {
    size_t values;
    double low, high;
  } kCases[] = {{1, 1, 1},    {5, 1, 5},     {6, 1, 6},        {8, 1, 8},
                {9, 2, 8},    {11, 2, 10},   {12, 3, 10},      {20, 6, 15},
                {30, 10, 21}, {100, 40, 61}, {1000, 469, 532}, {10'000, 4902, 5099}};
  for (const auto& one : kCases) {
    const BenchInterval interval = MedianInterval(UpTo(one.values));
    EXPECT_EQ(interval.low, one.low) << one.values;
    EXPECT_EQ(interval.high, one.high) << one.values;
  }
}

TEST(BenchRow, HasWhatFollowsFromItsSteps) {
  BenchRow row = SampleRow("1f1b", 2, {100, 110, 90});
  EXPECT_EQ(row.step_ms(), 100);
  EXPECT_EQ(row.samples_per_second(), 640);
  EXPECT_DOUBLE_EQ(row.peak_share(), 0.5);
  row.tokens = 10;
  EXPECT_EQ(row.tokens_per_second(), 6400);
  row.peak_flops = 0;
  EXPECT_EQ(row.peak_share(), 0);
}

TEST(BenchResults, CountTokensIfAllRowsHaveSome) {
  BenchResults results =
      SampleResults({SampleRow("1f1b", 2, {100}), BrokenRow("gpipe"), SampleRow("zb-v", 2, {100})});
  results.rows[0].tokens = 10;
  EXPECT_STREQ(results.rate_unit(), "samples/s");
  EXPECT_EQ(results.RateOf(results.rows[0]), 640);
  results.rows[2].tokens = 20;
  EXPECT_STREQ(results.rate_unit(), "tokens/s");
  EXPECT_EQ(results.RateOf(results.rows[2]), 12'800);
}

TEST(FormatMilliseconds, HasFourDigitsOrAll) {
  EXPECT_EQ(FormatMilliseconds(1.23456), "1.235");
  EXPECT_EQ(FormatMilliseconds(9999.4), "9999");
  EXPECT_EQ(FormatMilliseconds(9999.7), "10,000");
  EXPECT_EQ(FormatMilliseconds(12345.6), "12,346");
}

TEST(BenchResults, AreReadBack) {
  BenchRow tokens = SampleRow("zb-v", 4, {1.5, 2.5});
  tokens.tokens = 256;
  tokens.what.precision = "bf16";
  tokens.what.replicas = 2;
  tokens.what.threads = 3;
  tokens.other_load = 0.25;
  tokens.predicted_step_ms = tokens.predicted_bubble = tokens.flops = tokens.peak_flops = 0;
  BenchResults results =
      SampleResults({SampleRow("1f1b", 2, {100, 110, 90}), BrokenRow("gpipe"), tokens});
  results.files = {{"a.toml", "12"}, {"b.csv", "34"}};
  const std::string text = ToJson(results).dump(1);
  ASSERT_OK_AND_ASSIGN(const BenchResults read, ParseBenchResults(text));
  EXPECT_EQ(ToJson(read).dump(1), text);
  EXPECT_EQ(read.machine, results.machine);
  EXPECT_EQ(read.options, results.options);
  EXPECT_EQ(read.files, results.files);
  ASSERT_EQ(read.rows.size(), 3);
  EXPECT_EQ(read.rows[2].what, tokens.what);
  EXPECT_EQ(read.rows[2].steps_ms, tokens.steps_ms);
  EXPECT_EQ(read.rows[2].predicted_step_ms, 0);
  EXPECT_EQ(read.rows[1].error, results.rows[1].error);
  EXPECT_EQ(read.Find(tokens.what), &read.rows[2]);
  EXPECT_EQ(read.Find({.model = "other"}), nullptr);
}

TEST(BenchResults, OfOtherFilesAreRefusedWithTheirPlace) {
  const std::string text = ToJson(SampleResults({SampleRow("1f1b", 2, {100})})).dump();
  const struct {
    const char *part, *other, *message;
  } kCases[] = {
      {"stagecoach-bench", "stagecoach-plan", "1:2: $.format: must be"},
      {"\"version\":1", "\"version\":2", "$.version"},
      {"\"devices\":2", "\"devices\":0", "$.rows[0].devices"},
      {"\"bubble\"", "\"bubbel\"", "$.rows[0]"},
      {"\"steps_ms\":[100.0]", "\"steps_ms\":[-1]", "$.rows[0].steps_ms[0]"},
      {"\"steps_ms\":[100.0]", "\"steps_ms\":[]", "$.rows[0].steps_ms: must have a step"}};
  for (const auto& one : kCases) {
    const std::string changed = absl::StrReplaceAll(text, {{one.part, one.other}});
    ASSERT_NE(changed, text) << one.part;
    EXPECT_THAT(ParseBenchResults(changed),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(one.message)));
  }
  const BenchRow row = SampleRow("1f1b", 2, {100});
  EXPECT_THAT(ParseBenchResults(ToJson(SampleResults({row, row})).dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is there twice")));
}

}  // namespace
}  // namespace stagecoach::tools
