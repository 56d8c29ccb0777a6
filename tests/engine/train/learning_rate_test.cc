#include "engine/train/learning_rate.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LearningRate, ConstantStaysWhatItIs) {
  const LearningRate rate = LearningRate::Constant(0.3F);
  for (int64_t step : {1, 2, 1000, 1000000}) EXPECT_EQ(rate.At(step).value(), 0.3F);
}

TEST(LearningRate, WarmsUpLinearlyAndFallsAlongHalfACosine) {
  const auto at = [](const LearningRate& rate, int64_t step) { return rate.At(step).value(); };
  const LearningRate usual = LearningRate::WarmupCosine(0.8F, 4, 20);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_FLOAT_EQ(at(usual, step), 0.2F * static_cast<float>(step));
  }
  EXPECT_FLOAT_EQ(at(usual, 8), 0.4F * static_cast<float>(1.0 + std::sqrt(0.5)));
  EXPECT_FLOAT_EQ(at(usual, 12), 0.4F);
  EXPECT_FLOAT_EQ(at(usual, 16), 0.4F * static_cast<float>(1.0 - std::sqrt(0.5)));
  EXPECT_FLOAT_EQ(at(usual, 20), 0.0F);
  const LearningRate to_minimum = LearningRate::WarmupCosine(0.8F, 4, 20, 0.2F);
  EXPECT_FLOAT_EQ(at(to_minimum, 1), 0.2F);
  EXPECT_FLOAT_EQ(at(to_minimum, 12), 0.5F);
  for (int64_t step : {20, 21, 1000000}) EXPECT_EQ(at(to_minimum, step), 0.2F);
  const LearningRate cosine = LearningRate::WarmupCosine(1.0F, 0, 2);
  EXPECT_FLOAT_EQ(at(cosine, 1), 0.5F);
  EXPECT_FLOAT_EQ(at(cosine, 2), 0.0F);
  const LearningRate warm_up = LearningRate::WarmupCosine(1.0F, 2, 2);
  EXPECT_FLOAT_EQ(at(warm_up, 1), 0.5F);
  EXPECT_FLOAT_EQ(at(warm_up, 2), 1.0F);
}

TEST(LearningRate, NeverRisesAfterTheWarmUp) {
  const LearningRate rate = LearningRate::WarmupCosine(1.0F, 10, 100, 0.1F);
  for (int64_t step = 10; step < 110; ++step)
    EXPECT_LE(rate.At(step + 1).value(), rate.At(step).value());
}

LearningRate Scheduled(LearningRate::Kind kind, int64_t warmup_steps, int64_t total_steps,
                       float minimum = 0.0F) {
  LearningRate rate = LearningRate::WarmupCosine(0.5F, warmup_steps, total_steps, minimum);
  rate.kind = kind;
  return rate;
}

// tests/fixtures/recipes/make.py.
TEST(LearningRate, IsThatOfPyTorchAtEachStep) {
  using Kind = LearningRate::Kind;
  const nlohmann::json fixture =
      base::ParseJson(
          *base::ReadFile(absl::StrCat(STAGECOACH_TEST_FIXTURES, "/recipes/recipes.json"), 1 << 20))
          ->at("rates")
          .at("schedules");
  LearningRate step = Scheduled(Kind::kStep, 4, 20);
  step.period = 5;
  step.factor = 0.3F;
  const std::pair<const char*, LearningRate> schedules[] = {
      {"cosine", Scheduled(Kind::kWarmupCosine, 4, 20, 0.05F)},
      {"linear", Scheduled(Kind::kLinear, 4, 20, 0.05F)},
      {"constant", Scheduled(Kind::kConstant, 4, 20)},
      {"step:5:0.3", step},
      {"one-cycle", Scheduled(Kind::kOneCycle, 4, 20, 0.5F / 25e4F)}};
  EXPECT_EQ(fixture.size(), std::size(schedules));
  for (const auto& [name, rate] : schedules) {
    SCOPED_TRACE(name);
    EXPECT_OK(CheckLearningRate(rate));
    const auto expected = fixture.at(name).get<std::vector<double>>();
    ASSERT_EQ(expected.size(), 20);
    for (int64_t s = 1; s <= 20; ++s) {
      EXPECT_NEAR(rate.At(s).value(), expected[static_cast<size_t>(s - 1)], 1e-7) << s;
    }
  }
}

TEST(LearningRate, WarmsUpStaysAndDecaysOverTheLastSteps) {
  LearningRate rate = Scheduled(LearningRate::Kind::kWsd, 4, 20, 0.1F);
  rate.period = 8;
  const auto at = [&](int64_t step) { return rate.At(step).value(); };
  EXPECT_FLOAT_EQ(at(1), 0.125F);
  for (int64_t step = 4; step <= 12; ++step) EXPECT_EQ(at(step), 0.5F) << step;
  EXPECT_FLOAT_EQ(at(13), 0.45F);
  EXPECT_FLOAT_EQ(at(16), 0.3F);
  EXPECT_FLOAT_EQ(at(20), 0.1F);
  EXPECT_FLOAT_EQ(at(99), 0.1F);
}

TEST(LearningRate, WithoutAWarmUpTheFirstStepsAreAtThePeak) {
  LearningRate step = Scheduled(LearningRate::Kind::kStep, 0, 6);
  step.period = 2;
  for (const auto& [number, rate] : {std::pair(1, 0.5F), {2, 0.5F}, {3, 0.05F}, {5, 0.005F}}) {
    EXPECT_FLOAT_EQ(step.At(number).value(), rate) << number;
  }
  EXPECT_EQ(Scheduled(LearningRate::Kind::kConstant, 0, 6).At(1).value(), 0.5F);
}

TEST(LearningRate, IsWhatAFunctionSays) {
  const LearningRate rate =
      LearningRate::Function([](int64_t step) { return 1.0F / static_cast<float>(step); });
  EXPECT_OK(CheckLearningRate(rate));
  EXPECT_EQ(rate.At(1).value(), 1.0F);
  EXPECT_EQ(rate.At(4).value(), 0.25F);
}

TEST(LearningRate, NamesTheStepAtWhichAFunctionIsWrong) {
  const auto at_3 = [](std::function<float(int64_t)> function) {
    return LearningRate::Function(std::move(function)).At(3);
  };
  EXPECT_THAT(
      at_3([](int64_t) { return -1.0F; }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               ::testing::Eq("step 3: learning rate: -1 is not a finite number of 0 or more")));
  EXPECT_THAT(at_3([](int64_t) { return kNan; }), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(at_3([](int64_t step) { return std::vector<float>(2).at(step); }),
              StatusIs(absl::StatusCode::kInternal, "step 3 throws"));
}

TEST(CheckLearningRate, TakesTheEndsOfTheRanges) {
  EXPECT_OK(CheckLearningRate(LearningRate{}));
  EXPECT_OK(CheckLearningRate(LearningRate::Constant(0.0F)));
  EXPECT_OK(CheckLearningRate(LearningRate::WarmupCosine(1.0F, 0, 0, 0.0F)));
  EXPECT_OK(CheckLearningRate(LearningRate::WarmupCosine(1.0F, 5, 5, 1.0F)));
}

TEST(CheckLearningRate, RefusesWhatIsOutOfRange) {
  const Refusal<LearningRate> refusals[] = {
      {LearningRate::Constant(-1e-3F), "-0.001"},
      {LearningRate::Constant(kNan), "nan"},
      {LearningRate::Constant(kInfinity), "inf"},
      {LearningRate::Function(nullptr), "a function that is empty"},
      {LearningRate::WarmupCosine(1.0F, -1, 5), "-1 warm-up steps"},
      {LearningRate::WarmupCosine(1.0F, 6, 5), "6 warm-up steps of 5"},
      {LearningRate::WarmupCosine(0.5F, 1, 5, -0.1F), "of -0.1 is not"},
      {LearningRate::WarmupCosine(0.5F, 1, 5, 0.6F),
       "a minimum of 0.6 is not from 0 to the peak, 0.5"},
      {LearningRate::WarmupCosine(0.5F, 1, 5, kNan), "a minimum of nan"},
      {[] {
         LearningRate rate = Scheduled(LearningRate::Kind::kWsd, 4, 20);
         rate.period = 17;
         return rate;
       }(),
       "4 warm-up steps and a decay of 17 steps, of 20"},
      {[] {
         LearningRate rate = Scheduled(LearningRate::Kind::kStep, 4, 20);
         rate.period = 0;
         return rate;
       }(),
       "a period of 0 steps"},
      {[] {
         LearningRate rate = Scheduled(LearningRate::Kind::kStep, 4, 20);
         rate.factor = 1.5F;
         return rate;
       }(),
       "a factor of 1.5"},
  };
  ExpectRefusals(CheckLearningRate, refusals);
}

}  // namespace
}  // namespace stagecoach::engine
