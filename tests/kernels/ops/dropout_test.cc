#include "kernels/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels::dropout_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

constexpr DropoutKey kKey{.seed = 0x123456789ABCDEF0, .stream = 0x2FEDCBA987654321};

struct Case {
  DropoutShape shape;
  int64_t first_sample = 0;
};

class Dropout : public OpTest<Case> {
 protected:
  // Applies dropout from sample `first` on; without it, from 0.
  Vector Apply(const DropoutShape& of, const std::vector<float>& x, std::optional<int64_t> first,
               bool in_place = false) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      DropoutOp& op = bench.Create(of);
      const Shape matrix{of.rows, of.elements};
      const Tensor from = bench.Operand(matrix, x), to = in_place ? from : bench.Result(matrix);
      DropoutKey key = kKey;
      if (first.has_value()) key.first_sample = bench.Place(*first);
      bench.Run([&](Stream& stream) { return op.Apply(stream, key, from, to); });
      return to;
    });
  }
  // The reference has one rounding; storing the result adds another.
  Vector Expected(int64_t first_sample) const {
    const Vector y = reference::Dropout(of_, kKey, first_sample, x_);
    return ToDouble(Rounded({y.begin(), y.end()}));
  }

  const DropoutShape of_ = shape().shape;
  const int64_t first_sample_ = shape().first_sample;
  const std::vector<float> x_ = Rounded(RandomNormal(of_.rows * of_.elements, 1));
};

TEST_P(Dropout, IsTheReferenceRounded) {
  EXPECT_EQ(Apply(of_, x_, first_sample_), Expected(first_sample_));
}

TEST_P(Dropout, MayOverwriteItsOperand) {
  EXPECT_EQ(Apply(of_, x_, first_sample_, /*in_place=*/true), Expected(first_sample_));
}

TEST_P(Dropout, BeginsWithSampleZeroWithoutANumber) {
  EXPECT_EQ(Apply(of_, x_, std::nullopt), Expected(0));
}

std::string NameOf(const Case& of) {
  return absl::StrCat(of.shape.rows, "x", of.shape.elements, "_from_", of.first_sample);
}

// Sizes around the elements that share a block of words, those that are handled together, and those
// of a tile; block numbers of more than 32 bits.
constexpr int64_t kFar = int64_t{1} << 33;
INSTANTIATE_OP_TEST(Dropout, NameOf, Case{{1, 1, 0.5F}}, Case{{5, 3, 0.3F}, 7},
                    Case{{5, 7, 0.25F}, kFar}, Case{{3, 4, 0.5F}, 1}, Case{{3, 24, 0.1F}, kFar},
                    Case{{2, 63, 0.3F}, 100}, Case{{4, 65, 0.3F}}, Case{{2, 1032, 0.9F}, kFar},
                    Case{{40, 30, 0.5F}, kFar}, Case{{3, 4097, 0.3F}, 2},
                    Case{{2, 9000, 0.3F}, kFar});

using DropoutOfRateZero = Dropout;

TEST_P(DropoutOfRateZero, KeepsAll) { EXPECT_EQ(Apply(of_, x_, 0), ToDouble(x_)); }

INSTANTIATE_OP_TEST(DropoutOfRateZero, NameOf, Case{{4, 25, 0.0F}});

// Samples in one micro-batch or in several.
using DropoutMask = Dropout;

TEST_P(DropoutMask, DependsOnTheSampleNotOnItsMicroBatch) {
  const Vector whole = Apply(of_, x_, 40);
  for (const int64_t rows : {1, 2, 3}) {
    Vector parts;
    for (int64_t first = 0; first < of_.rows; first += rows) {
      const Vector y =
          Apply({.rows = rows, .elements = of_.elements, .rate = of_.rate},
                {x_.begin() + first * of_.elements, x_.begin() + (first + rows) * of_.elements},
                40 + first);
      parts.insert(parts.end(), y.begin(), y.end());
    }
    EXPECT_EQ(parts, whole) << rows << " rows";
  }
}

INSTANTIATE_OP_TEST(DropoutMask, NameOf, Case{{6, 101, 0.5F}});

// The following tests cover the masks themselves: the reference's, which all backends share.

// Returns the share of elements in which two masks of ones agree.
double ShareInCommon(const Vector& a, const Vector& b) {
  double same = 0;
  for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i] ? 1.0 : 0.0;
  return same / static_cast<double>(a.size());
}

TEST(DropoutMasks, AreOthersForEachSeedStreamSampleAndElement) {
  const DropoutShape shape{.rows = 1, .elements = 10000, .rate = 0.5F};
  const auto mask_of = [&](const DropoutKey& key, int64_t sample) {
    return reference::Dropout(shape, key, sample, std::vector<float>(10000, 1.0F));
  };
  const Vector mask = mask_of(kKey, 3);
  DropoutKey other_seed = kKey, other_stream = kKey;
  other_seed.seed += 1;
  other_stream.stream += 1;
  Vector shifted = mask;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  // Independent masks agree in half of the elements: 6 standard deviations are 0.03.
  EXPECT_NEAR(ShareInCommon(mask, mask_of(other_seed, 3)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, mask_of(other_stream, 3)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, mask_of(kKey, 4)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, shifted), 0.5, 0.03);
}

TEST(DropoutMasks, KeepTheMean) {
  constexpr int64_t kElements = 200000;
  const std::vector<float> ones(kElements, 1.0F);
  for (const float rate : {0.1F, 0.5F, 0.9F}) {
    const Vector y =
        reference::Dropout({.rows = 1, .elements = kElements, .rate = rate}, kKey, 0, ones);
    double sum = 0, kept = 0;
    for (const double value : y) {
      sum += value;
      kept += value != 0.0 ? 1.0 : 0.0;
    }
    const double p = 1.0 - static_cast<double>(rate);
    const double six_deviations = 6.0 * std::sqrt(p * (1.0 - p) / kElements);
    EXPECT_NEAR(kept / kElements, p, six_deviations) << rate;
    EXPECT_NEAR(sum / kElements, 1.0, six_deviations / p + 1e-6) << rate;
  }
}

TEST(DropoutRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<DropoutShape>({{.rows = 0},
                               {.elements = -1},
                               {.rows = kHuge},
                               {.elements = kHuge},
                               {.rate = 1.0F},
                               {.rate = -0.1F},
                               {.rate = std::numeric_limits<float>::quiet_NaN()},
                               {.rows = 1 << 20, .elements = 1 << 30}});
}

}  // namespace
}  // namespace stagecoach::kernels::dropout_test
