#include "engine/generate/token_choice.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Pair;

constexpr int64_t kDraws = 20000;

// Returns how often each id is chosen at the positions 0, 1, ...
std::map<int32_t, int64_t> Counts(const std::vector<float>& logits, const TokenChoice& choice) {
  std::map<int32_t, int64_t> counts;
  for (int64_t i = 0; i < kDraws; ++i) ++counts[ChooseToken(logits, choice, i).value()];
  return counts;
}

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

const std::vector<double> kProbabilities = {0.1, 0.4, 0.2, 0.3};

// Expects frequencies within five standard deviations of a binomial distribution.
void ExpectShares(const std::map<int32_t, int64_t>& counts, const std::vector<double>& shares) {
  for (size_t id = 0; id < shares.size(); ++id) {
    const auto found = counts.find(static_cast<int32_t>(id));
    const double count = found == counts.end() ? 0.0 : static_cast<double>(found->second);
    const double expected = shares[id] * kDraws;
    EXPECT_NEAR(count, expected, 5.0 * std::sqrt(expected * (1.0 - shares[id]))) << "id " << id;
  }
}

TEST(ChooseToken, DrawsByTheSoftmax) {
  ExpectShares(Counts(LogitsOf(kProbabilities), {.temperature = 1.0}), kProbabilities);
  // Doubling the logits squares the probabilities, which then sum to 0.3.
  ExpectShares(Counts(LogitsOf(kProbabilities), {.temperature = 0.5}),
               {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
}

TEST(ChooseToken, DrawsFromTheTopAlone) {
  const std::vector<float> logits = LogitsOf(kProbabilities);
  ExpectShares(Counts(logits, {.temperature = 1.0, .top_k = 2}), {0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0});
  // 0.4 + 0.3 is not enough; with 0.2 it is.
  ExpectShares(Counts(logits, {.temperature = 1.0, .top_p = 0.8}),
               {0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0});
  // After top_k keeps two, the first has 4 / 7.
  EXPECT_THAT(Counts(logits, {.temperature = 1.0, .top_k = 2, .top_p = 0.5}),
              ElementsAre(Pair(1, kDraws)));
}

TEST(ChooseToken, TakesTheLargestWhereNothingElseIsLeft) {
  const std::vector<float> logits = {0.5F, 2.0F, -1.0F, 2.0F};
  for (const TokenChoice& choice :
       {TokenChoice{.temperature = 0.0}, TokenChoice{.temperature = 1.0, .top_k = 1},
        TokenChoice{.temperature = 1.0, .top_p = 0.0},
        TokenChoice{.temperature = 1.0, .top_p = 1e-12}}) {
    EXPECT_THAT(Counts(logits, choice), ElementsAre(Pair(1, kDraws)));  // the first of equal ones
  }
}

TEST(ChooseToken, OfEqualOnesTheSmallerIdsComeFirst) {
  const std::vector<float> logits(5, 1.0F);
  EXPECT_THAT(Counts(logits, {.temperature = 1.0, .top_k = 3}),
              ElementsAre(Key(0), Key(1), Key(2)));
  ExpectShares(Counts(logits, {.temperature = 1.0}), {0.2, 0.2, 0.2, 0.2, 0.2});
}

TEST(ChooseToken, BearsLogitsFarApartAndMoreToKeepThanThereAre) {
  EXPECT_THAT(Counts({-3e38F, 3e38F}, {.temperature = 1e-3, .top_k = 100}),
              ElementsAre(Pair(1, kDraws)));
  EXPECT_THAT(Counts({7.0F}, {}), ElementsAre(Pair(0, kDraws)));
}

TEST(ChooseToken, DependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(1000, 0.0F);
  const auto at = [&](uint64_t seed, int64_t position) {
    return ChooseToken(logits, {.temperature = 1.0, .seed = seed}, position).value();
  };
  EXPECT_EQ(at(1, 7), at(1, 7));
  EXPECT_NE(at(1, 7), at(2, 7));
  EXPECT_NE(at(1, 7), at(1, 8));
}

TEST(ChooseToken, RefusesNumbersThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(ChooseToken({0.0F, bad}, {}, 3), IsRefused("for the id 1"));
  }
}

}  // namespace
}  // namespace stagecoach::engine
