#include "engine/data/formats/synthetic.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;

TEST(MakeSyntheticShapes, AreThoseOfTheSets) {
  const SyntheticSpec small = {.rows = 7, .features = 3, .classes = 2};
  ASSERT_OK_AND_ASSIGN(const TrainTest data, MakeSynthetic(small, 1));
  ASSERT_OK_AND_ASSIGN(const TrainTest shapes, MakeSyntheticShapes(small));
  EXPECT_EQ(shapes.train->rows(), data.train->rows());
  EXPECT_EQ(shapes.test->rows(), data.test->rows());
  EXPECT_EQ(shapes.train->features(), 3);
  EXPECT_EQ(shapes.test->classes(), 2);
  EXPECT_EQ(shapes.train->label(6), 0);
  // The largest possible set takes neither time nor memory.
  ASSERT_OK_AND_ASSIGN(const TrainTest large, MakeSyntheticShapes({20'000, 150'528, 1000}));
  EXPECT_EQ(large.train->rows(), 20'000);
  EXPECT_FALSE(MakeSyntheticShapes({0, 1, 2}).ok());
}

TEST(SyntheticSpec, ParsesThreeNumbers) {
  const auto spec = ParseSyntheticSpec("10000x100x10");
  ASSERT_OK(spec);
  EXPECT_EQ(*spec, (SyntheticSpec{.rows = 10000, .features = 100, .classes = 10}));
}

TEST(SyntheticSpec, RefusesAnyOtherForm) {
  for (const std::string text : {"", "10", "10x10", "10x10x10x10", "10xx10", "ax10x10", "10x1.5x10",
                                 "10,10,10", "10x10x10x", "99999999999999999999x1x2"}) {
    EXPECT_THAT(ParseSyntheticSpec(text),
                IsRefused(absl::StrCat("synthetic set \"", text,
                                       "\", expected ROWSxFEATURESxCLASSES such as 10000x100x10")));
  }
}

TEST(SyntheticSpec, RefusesNumbersOutOfRange) {
  EXPECT_OK(ParseSyntheticSpec("3579139414x1x2"));
  const Refusal<std::string> refusals[] = {
      {"0x10x2", "synthetic set of 0 rows, expected at least one"},
      {"-5x10x2", "synthetic set of -5 rows, expected at least one"},
      {"10x0x2", "synthetic set of 0 features, expected 1 to 1048576"},
      {"10x10x1", "synthetic set of 1 classes, expected 2 to 65536"},
      {"1x1048577x2", "1048577 features, expected 1 to 1048576"},
      {"10x10x65537", "65537 classes, expected 2 to 65536"},
      {"9223372036854775807x1x2", "the limit of 4294967296 values"},
      {"3579139415x1x2", "3579139415 rows x 1 features exceeds, with its test"},
  };
  ExpectRefusals(ParseSyntheticSpec, refusals);
  EXPECT_THAT(MakeSynthetic({0, 1, 2}, 0), IsRefused("0 rows"));
}

TrainTest Make(int64_t rows, int64_t features, int64_t classes, uint64_t seed) {
  const auto data = MakeSynthetic({rows, features, classes}, seed);
  EXPECT_OK(data);
  return *data;
}

TEST(Synthetic, HasTheShapeAskedForAndAFifthMoreRowsToTest) {
  const TrainTest data = Make(100, 7, 3, 1);
  EXPECT_EQ(data.train->rows(), 100);
  EXPECT_EQ(data.test->rows(), 20);
  for (const auto& set : {data.train, data.test}) {
    EXPECT_EQ(set->features(), 7);
    EXPECT_EQ(set->classes(), 3);
  }
}

TEST(Synthetic, HasATestRowHoweverSmall) { EXPECT_EQ(Make(1, 1, 2, 1).test->rows(), 1); }

TEST(Synthetic, BeginsLikeASmallerSetOfTheSameSeed) {
  const TrainTest small = Make(10, 5, 3, 4);
  const TrainTest large = Make(50, 5, 3, 4);
  for (int64_t row = 0; row < 10; ++row) {
    EXPECT_EQ(FeaturesOf(*small.train, row), FeaturesOf(*large.train, row));
    EXPECT_EQ(small.train->label(row), large.train->label(row));
  }
}

TEST(Synthetic, DiffersBetweenSeeds) {
  EXPECT_NE(FeaturesOf(*Make(10, 5, 3, 4).train, 0), FeaturesOf(*Make(10, 5, 3, 5).train, 0));
}

TEST(Synthetic, TestRowsAreNotTrainingRows) {
  const TrainTest data = Make(50, 5, 3, 4);
  for (int64_t test = 0; test < data.test->rows(); ++test) {
    for (int64_t train = 0; train < data.train->rows(); ++train) {
      EXPECT_NE(FeaturesOf(*data.test, test), FeaturesOf(*data.train, train));
    }
  }
}

TEST(Synthetic, InputsAreStandardNormal) {
  const TrainTest data = Make(1000, 100, 2, 9);
  double sum = 0;
  double square = 0;
  for (int64_t row = 0; row < 1000; ++row) {
    for (const float value : FeaturesOf(*data.train, row)) {
      sum += value;
      square += double{value} * value;
    }
  }
  // The bound is five standard errors of 100,000 samples.
  EXPECT_NEAR(sum / 1e5, 0, 5 * std::sqrt(1e-5));
  EXPECT_NEAR(square / 1e5, 1, 5 * std::sqrt(2e-5));
}

TEST(Synthetic, ClassesHoldBetweenHalfAndTwiceTheirShare) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const TrainTest data = Make(4000, 20, 10, seed);
    const std::vector<int32_t> labels = LabelsOf(*data.train);
    for (int32_t c = 0; c < 10; ++c) {
      const int64_t rows = std::count(labels.begin(), labels.end(), c);
      EXPECT_GT(rows, 200) << "class " << c << ", seed " << seed;
      EXPECT_LT(rows, 800) << "class " << c << ", seed " << seed;
    }
  }
}

// Returns the accuracy of the simplest learner, which knows a class by the mean of its training
// inputs.
double AccuracyOfClassMeans(const TrainTest& data) {
  const int64_t features = data.train->features();
  std::vector<std::vector<double>> sums(data.train->classes(), std::vector<double>(features, 0.0));
  for (int64_t row = 0; row < data.train->rows(); ++row) {
    const std::vector<float> x = FeaturesOf(*data.train, row);
    std::vector<double>& sum = sums[data.train->label(row)];
    for (int64_t f = 0; f < features; ++f) sum[f] += x[f];
  }
  int64_t right = 0;
  for (int64_t row = 0; row < data.test->rows(); ++row) {
    const std::vector<float> x = FeaturesOf(*data.test, row);
    std::vector<double> scores;
    for (const std::vector<double>& sum : sums) {
      double score = 0;
      for (int64_t f = 0; f < features; ++f) score += sum[f] * x[f];
      scores.push_back(score);
    }
    const auto best = std::max_element(scores.begin(), scores.end());
    right += best - scores.begin() == data.test->label(row);
  }
  return static_cast<double>(right) / static_cast<double>(data.test->rows());
}

TEST(Synthetic, WhatIsLearnedFromTheTrainingSetHoldsForTheTestSet) {
  EXPECT_GT(AccuracyOfClassMeans(Make(5000, 20, 10, 3)), 0.3);
}

}  // namespace
}  // namespace stagecoach::engine
