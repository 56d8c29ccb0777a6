#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

namespace stagecoach::base {
namespace {

using Words = std::array<uint32_t, 4>;

// These are the known answers published with the paper's Random123 library.
TEST(Philox4x32, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, WordsAreThoseOfTheGenerator) {
  const RandomStream stream(0x1111111122222222, 0x3333333344444444);
  const uint64_t block = 0x5555555566666666 / 4;
  const Words words = Philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0x44444444, 0x33333333},
      {0x22222222, 0x11111111});
  for (uint64_t lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(stream.Uint32(4 * block + lane), words[lane]) << lane;
  }
}

TEST(RandomStream, SeedsAndStreamsDifferInAllTheirBits) {
  std::set<uint32_t> first_words = {RandomStream(0, 0).Uint32(0)};
  for (int bit = 0; bit < 64; ++bit) {
    first_words.insert(RandomStream(uint64_t{1} << bit, 0).Uint32(0));
    first_words.insert(RandomStream(0, uint64_t{1} << bit).Uint32(0));
  }
  EXPECT_EQ(first_words.size(), 129);
}

TEST(RandomStream, UniformStaysInItsInterval) {
  const RandomStream stream(1, 2);
  for (uint64_t i = 0; i < 100'000; ++i) {
    ASSERT_GE(stream.Uniform(i), 0.0f) << i;
    ASSERT_LT(stream.Uniform(i), 1.0f) << i;
  }
}

// The bounds are six standard errors wide.
TEST(RandomStream, UniformHasTheRightMeanAndVariance) {
  constexpr int kSamples = 100'000;
  const RandomStream stream(1, 2);
  double sum = 0;
  double squares = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const double centered = stream.Uniform(i) - 0.5;
    sum += centered;
    squares += centered * centered;
  }
  EXPECT_NEAR(sum / kSamples, 0, 6 * std::sqrt(1.0 / 12 / kSamples));
  EXPECT_NEAR(squares / kSamples, 1.0 / 12, 6 * std::sqrt(1.0 / 180 / kSamples));
}

// A normal variable's first four moments are 0, 1, 0, 3; their estimates have variances 1, 2, 15
// and 96 over the number of samples.
TEST(RandomStream, NormalHasTheRightMoments) {
  constexpr int kSamples = 100'000;
  const RandomStream stream(3, 4);
  std::array<double, 4> sums = {};
  for (uint64_t i = 0; i < kSamples; ++i) {
    double power = 1;
    for (double& sum : sums) sum += power *= stream.Normal(i);
  }
  const std::array<double, 4> moments = {0, 1, 0, 3};
  const std::array<double, 4> variances = {1, 2, 15, 96};
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_NEAR(sums[k] / kSamples, moments[k], 6 * std::sqrt(variances[k] / kSamples)) << k + 1;
  }
}

TEST(RandomStream, NeighboringNormalsAreUncorrelated) {
  constexpr int kSamples = 100'000;
  const RandomStream stream(5, 6);
  for (uint64_t lag = 1; lag <= 4; ++lag) {
    double products = 0;
    for (uint64_t i = 0; i < kSamples; ++i) products += stream.Normal(i) * stream.Normal(i + lag);
    EXPECT_NEAR(products / kSamples, 0, 6 / std::sqrt(kSamples)) << "lag " << lag;
  }
}

TEST(RandomStream, BelowStaysBelow) {
  const RandomStream stream(7, 8);
  for (const uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1} << 33,
                           std::numeric_limits<uint64_t>::max()}) {
    for (uint64_t i = 0; i < 1000; ++i) ASSERT_LT(stream.Below(i, n), n) << i;
  }
}

TEST(RandomStream, BelowHitsEveryValueEquallyOften) {
  constexpr int kSamples = 70'000;
  const RandomStream stream(9, 10);
  std::array<int, 7> counts = {};
  for (uint64_t i = 0; i < kSamples; ++i) ++counts[stream.Below(i, counts.size())];
  const double deviation = std::sqrt(kSamples * (1.0 / 7) * (6.0 / 7));
  for (const int count : counts) EXPECT_NEAR(count, kSamples / 7, 6 * deviation);
}

TEST(RandomStreamDeathTest, BelowRefusesAnEmptyInterval) {
  EXPECT_DEATH(RandomStream(1, 1).Below(0, 0), "no integer");
}

// Covers every length and offset modulo the block of four, and an index beyond 32 bits.
TEST(RandomStream, FillsEqualTheValuesByIndex) {
  const RandomStream stream(11, 12);
  for (const uint64_t first :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, (uint64_t{1} << 40) + 5}) {
    for (const size_t size : {0, 1, 2, 3, 4, 5, 9, 1001}) {
      std::vector<float> uniform(size), normal(size);
      stream.FillUniform(-0.5f, 1.25f, absl::MakeSpan(uniform), first);
      stream.FillNormal(0.1f, 0.02f, absl::MakeSpan(normal), first);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(uniform[i], std::fma(1.75f, stream.Uniform(first + i), -0.5f))
            << first << "+" << i;
        ASSERT_EQ(normal[i], std::fma(0.02f, stream.Normal(first + i), 0.1f)) << first << "+" << i;
      }
    }
  }
}

TEST(RandomStream, FillsInPiecesEqualOneFill) {
  const RandomStream stream(13, 14);
  std::vector<float> whole(100), pieces(100);
  stream.FillNormal(0, 1, absl::MakeSpan(whole));
  stream.FillNormal(0, 1, absl::MakeSpan(pieces).first(37));
  stream.FillNormal(0, 1, absl::MakeSpan(pieces).subspan(37), 37);
  EXPECT_EQ(whole, pieces);
}

TEST(Permutation, HoldsEveryNumberOnce) {
  for (const int64_t n : {0, 1, 2, 3, 10, 1000}) {
    std::vector<int64_t> order = Permutation(1, 2, n);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> sorted(static_cast<size_t>(n));
    std::iota(sorted.begin(), sorted.end(), 0);
    EXPECT_EQ(order, sorted) << n;
  }
}

TEST(Permutation, DependsOnSeedAndStreamOnly) {
  EXPECT_EQ(Permutation(1, 2, 100), Permutation(1, 2, 100));
  EXPECT_NE(Permutation(1, 2, 100), Permutation(1, 3, 100));
  EXPECT_NE(Permutation(1, 2, 100), Permutation(2, 2, 100));
}

TEST(Permutation, GivesEveryOrderEquallyOften) {
  constexpr int kSamples = 60'000;
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t stream = 0; stream < kSamples; ++stream) ++counts[Permutation(3, stream, 3)];
  EXPECT_EQ(counts.size(), 6);
  const double deviation = std::sqrt(kSamples * (1.0 / 6) * (5.0 / 6));
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, kSamples / 6, 6 * deviation);
}

}  // namespace
}  // namespace stagecoach::base
