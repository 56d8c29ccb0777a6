#include "kernels/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::dropout_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

constexpr DropoutKey kKey{.seed = 0x123456789ABCDEF0, .stream = 0x2FEDCBA987654321};

Vector Apply(const DropoutShape& shape, DropoutKey key, const std::vector<float>& x,
             int64_t first_sample, int threads = 1, bool in_place = false) {
  TestDevice device(threads);
  key.first_sample = &first_sample;
  const Shape matrix{shape.rows, shape.elements};
  const Tensor from = device.Operand(matrix, x);
  const Tensor to = in_place ? from : device.Result(matrix);
  auto op = device.ops().Create(shape);
  EXPECT_OK(op);
  EXPECT_OK(device.Run([&](Stream& stream) { return (*op)->Apply(stream, key, from, to); }));
  return TestDevice::Values(to);
}

class CpuDropout : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  const DropoutShape shape_{std::get<0>(GetParam()), std::get<1>(GetParam()), 0.3F};
  const int64_t first_sample_ = std::get<2>(GetParam());
  const std::vector<float> x_ = RandomNormal(shape_.rows * shape_.elements, 1);
};

TEST_P(CpuDropout, IsTheReference) {
  EXPECT_EQ(Apply(shape_, kKey, x_, first_sample_),
            reference::Dropout(shape_, kKey, first_sample_, x_));
}

TEST_P(CpuDropout, MayOverwriteItsOperand) {
  EXPECT_EQ(Apply(shape_, kKey, x_, first_sample_, 1, /*in_place=*/true),
            Apply(shape_, kKey, x_, first_sample_));
}

TEST_P(CpuDropout, AnyNumberOfThreadsGivesTheSameBits) {
  const Vector expected = Apply(shape_, kKey, x_, first_sample_);
  EXPECT_EQ(Apply(shape_, kKey, x_, first_sample_, 2), expected);
  EXPECT_EQ(Apply(shape_, kKey, x_, first_sample_, 3), expected);
}

std::string NameOfCase(const ::testing::TestParamInfo<CpuDropout::ParamType>& info) {
  const auto& [rows, elements, first] = info.param;
  return absl::StrCat(rows, "x", elements, "_from_", first);
}

// Rows, elements, first sample: around the elements that have a block of words, those that are
// handled together, and those of a tile; block numbers of more than 32 bits.
INSTANTIATE_TEST_SUITE_P(Shapes, CpuDropout,
                         ::testing::Values(std::tuple(1, 1, 0), std::tuple(5, 3, 7),
                                           std::tuple(3, 4, 1), std::tuple(2, 63, 100),
                                           std::tuple(4, 65, 0), std::tuple(3, 4097, 2),
                                           std::tuple(2, 9000, int64_t{1} << 33)),
                         NameOfCase);

// Samples in one micro-batch or in several.
TEST(CpuDropoutMask, DependsOnTheSampleNotOnItsMicroBatch) {
  constexpr int64_t kElements = 101;
  const std::vector<float> x = RandomNormal(6 * kElements, 1);
  const Vector whole = Apply({.rows = 6, .elements = kElements, .rate = 0.5F}, kKey, x, 40);
  for (const int64_t rows : {1, 2, 3}) {
    Vector parts;
    for (int64_t first = 0; first < 6; first += rows) {
      const std::vector<float> part(x.begin() + first * kElements,
                                    x.begin() + (first + rows) * kElements);
      const Vector y =
          Apply({.rows = rows, .elements = kElements, .rate = 0.5F}, kKey, part, 40 + first);
      parts.insert(parts.end(), y.begin(), y.end());
    }
    EXPECT_EQ(parts, whole) << rows << " rows";
  }
}

// How many elements of ones two masks have in common.
double ShareInCommon(const Vector& a, const Vector& b) {
  double same = 0;
  for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i] ? 1.0 : 0.0;
  return same / static_cast<double>(a.size());
}

TEST(CpuDropoutMask, IsAnotherForEachSeedStreamSampleAndElement) {
  const DropoutShape shape{.rows = 1, .elements = 10000, .rate = 0.5F};
  const std::vector<float> ones(10000, 1.0F);
  const Vector mask = Apply(shape, kKey, ones, 3);
  DropoutKey other_seed = kKey, other_stream = kKey;
  other_seed.seed += 1;
  other_stream.stream += 1;
  Vector shifted = mask;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  // Of independent masks half is in common: 6 standard deviations are 0.03.
  EXPECT_NEAR(ShareInCommon(mask, Apply(shape, other_seed, ones, 3)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, Apply(shape, other_stream, ones, 3)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, Apply(shape, kKey, ones, 4)), 0.5, 0.03);
  EXPECT_NEAR(ShareInCommon(mask, shifted), 0.5, 0.03);
}

TEST(CpuDropoutMask, KeepsTheMean) {
  constexpr int64_t kElements = 200000;
  const std::vector<float> ones(kElements, 1.0F);
  for (const float rate : {0.1F, 0.5F, 0.9F}) {
    const Vector y = Apply({.rows = 1, .elements = kElements, .rate = rate}, kKey, ones, 0);
    double sum = 0, kept = 0;
    for (double value : y) {
      sum += value;
      kept += value != 0.0 ? 1.0 : 0.0;
    }
    const double p = 1.0 - static_cast<double>(rate);
    const double six_deviations = 6.0 * std::sqrt(p * (1.0 - p) / kElements);
    EXPECT_NEAR(kept / kElements, p, six_deviations) << rate;
    EXPECT_NEAR(sum / kElements, 1.0, six_deviations / p + 1e-6) << rate;
  }
}

TEST(CpuDropoutMask, OfRateZeroKeepsAll) {
  const std::vector<float> x = RandomNormal(100, 1);
  EXPECT_EQ(Apply({.rows = 4, .elements = 25, .rate = 0.0F}, kKey, x, 0), ToDouble(x));
}

TEST(CpuDropoutMask, BeginsWithSampleZeroWithoutANumber) {
  const std::vector<float> x = RandomNormal(100, 1);
  const DropoutShape shape{.rows = 4, .elements = 25, .rate = 0.5F};
  TestDevice device;
  const Tensor y = device.Operand(Shape{4, 25}, x);
  ASSERT_OK_AND_ASSIGN(const auto op, device.ops().Create(shape));
  EXPECT_OK(device.Run([&](Stream& stream) { return op->Apply(stream, kKey, y, y); }));
  EXPECT_EQ(TestDevice::Values(y), Apply(shape, kKey, x, 0));
}

TEST(CpuDropoutRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const DropoutShape& shape :
       {DropoutShape{.rows = 0}, DropoutShape{.elements = -1}, DropoutShape{.rows = kHuge},
        DropoutShape{.elements = kHuge}, DropoutShape{.rate = 1.0F}, DropoutShape{.rate = -0.1F},
        DropoutShape{.rate = std::numeric_limits<float>::quiet_NaN()},
        DropoutShape{.rows = 1 << 20, .elements = 1 << 30}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::dropout_test
