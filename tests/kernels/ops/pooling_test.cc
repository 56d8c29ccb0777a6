#include "kernels/ops/pooling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::pooling_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

class PoolingTest : public OpTest<PoolingShape> {
 protected:
  bool is_max() const { return shape().kind == Pooling::kMax; }
  Shape inputs() const {
    return {shape().samples, shape().channels, shape().height, shape().width};
  }
  Shape outputs() const {
    return {shape().samples, shape().channels, shape().output_height(), shape().output_width()};
  }

  // Returns y and dx.
  std::array<Vector, 2> Pool() const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      PoolingOp& op = bench.Create(shape());
      const Shape inner = bench.Images(inputs()), outer = bench.Images(outputs());
      const Tensor x = bench.Operand(inner, x_), dy = bench.Operand(outer, dy_);
      const Tensor y = bench.Result(outer), dx = bench.Result(inner);
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Forward(stream, x, y));
        return op.BackwardInput(stream, dy, is_max() ? x : Tensor{}, dx, workspace);
      });
      return std::array{y, dx};
    });
  }

  std::vector<float> x_ = Rounded(RandomNormal(inputs().elements(), 1));
  std::vector<float> dy_ = Rounded(RandomNormal(outputs().elements(), 2));
};

TEST_P(PoolingTest, MatchesReference) {
  const auto bounds = [&](const Vector& magnitudes) {
    Vector each;
    const int64_t terms = shape().kernel_height * shape().kernel_width + 2;
    for (const double sum : magnitudes) each.push_back(DotBound(terms, sum));
    return each;
  };
  const Vector x = ToDouble(x_), dy = ToDouble(dy_);
  const auto [y, dx] = Pool();
  EXPECT_THAT(
      y,
      Near(reference::PoolingForward(shape(), x),
           bounds(Magnitudes(reference::PoolingForward(shape(), is_max() ? x : Magnitudes(x))))));
  EXPECT_THAT(dx, Near(reference::PoolingBackward(shape(), dy, x),
                       bounds(reference::PoolingBackward(shape(), Magnitudes(dy), x))));
}

std::string NameOf(const PoolingShape& s) {
  return absl::StrCat(s.kind == Pooling::kMax ? "max" : "average", s.samples, "x", s.channels, "x",
                      s.height, "x", s.width, "_k", s.kernel_height, "x", s.kernel_width, "s",
                      s.stride, "p", s.padding);
}

// If windows overlap, an element has the gradients of several; if the whole image is one, it has a
// share; if they are apart, it may have none. With channels last: more than one band of rows, more
// channels than a block has threads, and windows of more than 256 elements.
std::vector<PoolingShape> Cases() {
  std::vector<PoolingShape> cases;
  for (const Pooling kind : {Pooling::kMax, Pooling::kAverage}) {
    cases.insert(cases.end(), {{kind},
                               {kind, 3, 1, 4, 6, 2, 2, 2},
                               {kind, 8, 5, 7, 7, 3, 3, 2, 1},
                               {kind, 2, 8, 5, 4, 2, 3, 1, 1},
                               {kind, 1, 17, 4, 5, 4, 5},
                               {kind, 5, 16, 8, 8, 5, 5, 1, 2},
                               {kind, 3, 24, 11, 10, 3, 3, 2, 1},
                               {kind, 2, 8, 40, 37, 3, 3, 2, 1},
                               {kind, 1, 72, 21, 9, 3, 3, 2},
                               {kind, 2, 72, 3, 5, 3, 3, 1, 1},
                               {kind, 3, 264, 5, 5, 5, 5},
                               {kind, 1, 8, 6, 7, 2, 2, 3, 1},
                               {kind, 1, 12, 17, 18, 16, 17, 1, 8}});
  }
  return cases;
}
INSTANTIATE_OP_TEST_FROM(PoolingTest, NameOf, Cases());

using PoolingOfNan = PoolingTest;

TEST_P(PoolingOfNan, PassesItOn) {
  x_ = {1, 5, 2, 2, std::numeric_limits<float>::quiet_NaN(), 7, 2, 2};
  const Vector y = Pool()[0];
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 2);
}

INSTANTIATE_OP_TEST(PoolingOfNan, NameOf, PoolingShape{Pooling::kMax, 1, 1, 2, 4, 2, 2, 2},
                    PoolingShape{Pooling::kAverage, 1, 1, 2, 4, 2, 2, 2});

// Chooses the first of equal elements in row order, and the first NaN before all others.
using PoolingOfEqualElements = PoolingTest;

TEST_P(PoolingOfEqualElements, GivesTheFirstTheGradient) {
  dy_ = {3};
  std::fill(x_.begin(), x_.end(), -std::numeric_limits<float>::infinity());
  Vector expected(x_.size(), 0.0);
  expected[0] = 3;
  EXPECT_EQ(Pool()[1], expected);
  x_[0] = 1;
  x_[1] = x_[2] = x_.back() = 5;
  std::swap(expected[0], expected[1]);
  EXPECT_EQ(Pool()[1], expected);
  x_[2] = x_[3] = std::numeric_limits<float>::quiet_NaN();
  std::swap(expected[1], expected[2]);
  EXPECT_EQ(Pool()[1], expected);
}

INSTANTIATE_OP_TEST(PoolingOfEqualElements, NameOf, PoolingShape{Pooling::kMax, 1, 1, 2, 2, 2, 2},
                    PoolingShape{Pooling::kMax, 1, 1, 17, 16, 17, 16});

// Many elements are equal, minus infinity or, in some windows, NaN.
using PoolingOfFewValues = PoolingTest;

TEST_P(PoolingOfFewValues, GivesTheFirstTheGradient) {
  for (float& x : x_) {
    if (x < -0.5F) x = -std::numeric_limits<float>::infinity();
    x = x > 2.0F ? std::numeric_limits<float>::quiet_NaN() : std::round(x);
  }
  for (float& dy : dy_) dy = std::round(dy);  // sums are exact
  EXPECT_EQ(Pool()[1], reference::PoolingBackward(shape(), ToDouble(dy_), ToDouble(x_)));
}

INSTANTIATE_OP_TEST(PoolingOfFewValues, NameOf, PoolingShape{Pooling::kMax, 2, 8, 12, 9, 3, 3, 3},
                    PoolingShape{Pooling::kMax, 2, 16, 7, 6, 3, 3, 2, 1});

TEST(PoolingRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<PoolingShape>({{.samples = 0},
                               {.height = kHuge},
                               {.kernel_width = 2},
                               {.stride = 0},
                               {.padding = 1},
                               {.padding = -1}});
}

}  // namespace
}  // namespace stagecoach::kernels::pooling_test
