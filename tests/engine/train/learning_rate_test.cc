#include "engine/train/learning_rate.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LearningRate, ConstantStaysWhatItIs) {
  const LearningRate rate = LearningRate::Constant(0.3F);
  for (int64_t step : {1, 2, 1000, 1000000}) EXPECT_EQ(rate.At(step), 0.3F);
}

TEST(LearningRate, WarmsUpLinearly) {
  const LearningRate rate = LearningRate::WarmupCosine(0.8F, 4, 20);
  EXPECT_FLOAT_EQ(rate.At(1), 0.2F);
  EXPECT_FLOAT_EQ(rate.At(2), 0.4F);
  EXPECT_FLOAT_EQ(rate.At(3), 0.6F);
  EXPECT_FLOAT_EQ(rate.At(4), 0.8F);
}

TEST(LearningRate, FallsAlongHalfACosine) {
  const LearningRate rate = LearningRate::WarmupCosine(0.8F, 4, 20);
  EXPECT_FLOAT_EQ(rate.At(8), 0.4F * static_cast<float>(1.0 + std::sqrt(0.5)));
  EXPECT_FLOAT_EQ(rate.At(12), 0.4F);
  EXPECT_FLOAT_EQ(rate.At(16), 0.4F * static_cast<float>(1.0 - std::sqrt(0.5)));
  EXPECT_FLOAT_EQ(rate.At(20), 0.0F);
}

TEST(LearningRate, EndsAtItsMinimumAndStaysThere) {
  const LearningRate rate = LearningRate::WarmupCosine(0.8F, 4, 20, 0.2F);
  EXPECT_FLOAT_EQ(rate.At(1), 0.2F);
  EXPECT_FLOAT_EQ(rate.At(12), 0.5F);
  for (int64_t step : {20, 21, 1000000}) EXPECT_EQ(rate.At(step), 0.2F);
}

TEST(LearningRate, NeverRisesAfterTheWarmUp) {
  const LearningRate rate = LearningRate::WarmupCosine(1.0F, 10, 100, 0.1F);
  for (int64_t step = 10; step < 110; ++step) EXPECT_LE(rate.At(step + 1), rate.At(step));
}

TEST(LearningRate, NeedsNoWarmUp) {
  const LearningRate rate = LearningRate::WarmupCosine(1.0F, 0, 2);
  EXPECT_FLOAT_EQ(rate.At(1), 0.5F);
  EXPECT_FLOAT_EQ(rate.At(2), 0.0F);
}

TEST(LearningRate, MayConsistOfWarmUpAlone) {
  const LearningRate rate = LearningRate::WarmupCosine(1.0F, 2, 2);
  EXPECT_FLOAT_EQ(rate.At(1), 0.5F);
  EXPECT_FLOAT_EQ(rate.At(2), 1.0F);
}

TEST(CheckLearningRate, TakesTheEndsOfTheRanges) {
  EXPECT_OK(CheckLearningRate(LearningRate{}));
  EXPECT_OK(CheckLearningRate(LearningRate::Constant(0.0F)));
  EXPECT_OK(CheckLearningRate(LearningRate::WarmupCosine(1.0F, 0, 0, 0.0F)));
  EXPECT_OK(CheckLearningRate(LearningRate::WarmupCosine(1.0F, 5, 5, 1.0F)));
}

struct BadRate {
  const char* name;
  LearningRate rate;
  const char* message;
};

class CheckLearningRateRefuses : public ::testing::TestWithParam<BadRate> {};

TEST_P(CheckLearningRateRefuses, WhatIsOutOfRange) {
  EXPECT_THAT(CheckLearningRate(GetParam().rate),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, CheckLearningRateRefuses,
    ::testing::Values(
        BadRate{"NegativePeak", LearningRate::Constant(-1e-3F), "-0.001"},
        BadRate{"NanPeak", LearningRate::Constant(kNan), "nan"},
        BadRate{"InfinitePeak", LearningRate::Constant(kInfinity), "inf"},
        BadRate{"NegativeWarmUp", LearningRate::WarmupCosine(1.0F, -1, 5), "-1 warm-up steps"},
        BadRate{"WarmUpBeyondTheEnd", LearningRate::WarmupCosine(1.0F, 6, 5),
                "6 warm-up steps of 5"},
        BadRate{"NegativeMinimum", LearningRate::WarmupCosine(0.5F, 1, 5, -0.1F), "of -0.1 is not"},
        BadRate{"MinimumAboveThePeak", LearningRate::WarmupCosine(0.5F, 1, 5, 0.6F),
                "a minimum of 0.6 is not from 0 to the peak, 0.5"},
        BadRate{"NanMinimum", LearningRate::WarmupCosine(0.5F, 1, 5, kNan), "a minimum of nan"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace stagecoach::engine
