#include "kernels/ops/convolution.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::convolution_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

Shape ShapeOfX(const ConvolutionShape& s) { return {s.samples, s.inputs, s.height, s.width}; }
Shape ShapeOfW(const ConvolutionShape& s) {
  return {s.outputs, s.inputs / s.groups, s.kernel, s.kernel};
}
Shape ShapeOfY(const ConvolutionShape& s) {
  return {s.samples, s.outputs, s.output_height(), s.output_width()};
}

struct Problem {
  explicit Problem(const ConvolutionShape& shape_in)
      : shape(shape_in),
        x(RandomNormal(ShapeOfX(shape).elements(), 1)),
        w(RandomNormal(ShapeOfW(shape).elements(), 2)),
        b(RandomNormal(shape.has_bias ? shape.outputs : 0, 3)),
        dy(RandomNormal(ShapeOfY(shape).elements(), 4)) {}

  ConvolutionShape shape;
  std::vector<float> x, w, b, dy;
};

// Operands on a device. Results and scratch hold not-a-number before a call.
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1) : problem_(problem), device_(threads) {
    auto op = device_.ops().Create(problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  Tensor Forward() {
    const Tensor y = device_.Result(ShapeOfY(problem_.shape));
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(stream, X(), W(), BiasOf(problem_.b), y, Scratch());
    }));
    return y;
  }

  Tensor BackwardInput() {
    const Tensor dx = device_.Result(ShapeOfX(problem_.shape));
    EXPECT_OK(device_.Run(
        [&](Stream& stream) { return op_->BackwardInput(stream, Dy(), W(), dx, Scratch()); }));
    return dx;
  }

  struct WeightGradient {
    Tensor dw, db;
  };
  // With `start` in all gradients, added to it.
  WeightGradient BackwardWeight(float start = 0.0F) {
    const bool accumulate = start != 0.0F;
    const Shape shape = ShapeOfW(problem_.shape);
    const auto gradient = [&](const Shape& of) {
      if (!accumulate) return device_.Result(of);
      return device_.Operand(of, std::vector<float>(static_cast<size_t>(of.elements()), start));
    };
    const WeightGradient result{gradient(shape),
                                problem_.shape.has_bias ? gradient(Shape{shape.dim(0)}) : Tensor{}};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, X(), Dy(), result.dw, result.db, accumulate, Scratch());
    }));
    return result;
  }

 private:
  Tensor X() { return device_.Operand(ShapeOfX(problem_.shape), problem_.x); }
  Tensor W() { return device_.Operand(ShapeOfW(problem_.shape), problem_.w); }
  Tensor Dy() { return device_.Operand(ShapeOfY(problem_.shape), problem_.dy); }
  Tensor BiasOf(const std::vector<float>& b) {
    return b.empty() ? Tensor{} : device_.Operand(Shape{problem_.shape.outputs}, b);
  }
  std::byte* Scratch() { return device_.Workspace(op_->workspace_bytes()); }

  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<ConvolutionOp> op_;
};

// `terms` products each, of which `magnitudes` has the sums of their magnitudes.
std::vector<double> Bounds(int64_t terms, const Vector& magnitudes) {
  std::vector<double> bounds;
  for (const double sum : magnitudes) bounds.push_back(DotBound(terms, sum));
  return bounds;
}

class CpuConvolution : public ::testing::TestWithParam<ConvolutionShape> {
 protected:
  const ConvolutionShape shape_ = GetParam();
  const Problem problem_{shape_};
  const Vector x_ = ToDouble(problem_.x), w_ = ToDouble(problem_.w), b_ = ToDouble(problem_.b);
  const Vector dy_ = ToDouble(problem_.dy);
  const int64_t window_ = shape_.kernel * shape_.kernel;
};

TEST_P(CpuConvolution, ForwardMatchesReference) {
  OnDevice device(problem_);
  const Vector magnitudes =
      reference::ConvolutionForward(shape_, Magnitudes(x_), Magnitudes(w_), Magnitudes(b_));
  EXPECT_THAT(TestDevice::Values(device.Forward()),
              CloseTo(reference::ConvolutionForward(shape_, x_, w_, b_),
                      Bounds(shape_.inputs / shape_.groups * window_ + 1, magnitudes)));
}

TEST_P(CpuConvolution, BackwardInputMatchesReference) {
  OnDevice device(problem_);
  EXPECT_THAT(TestDevice::Values(device.BackwardInput()),
              CloseTo(reference::ConvolutionBackwardInput(shape_, dy_, w_),
                      Bounds(shape_.outputs / shape_.groups * window_,
                             reference::ConvolutionBackwardInput(shape_, Magnitudes(dy_),
                                                                 Magnitudes(w_)))));
}

TEST_P(CpuConvolution, BackwardWeightMatchesReferenceAndAddsToWhatThereIs) {
  auto expected = reference::ConvolutionBackwardWeight(shape_, x_, dy_);
  auto magnitudes = reference::ConvolutionBackwardWeight(shape_, Magnitudes(x_), Magnitudes(dy_));
  const Shape y = ShapeOfY(shape_);
  const int64_t terms = y.elements() / shape_.outputs + 1;
  for (const float start : {0.0F, 3.0F}) {
    OnDevice device(problem_);
    const auto actual = device.BackwardWeight(start);
    for (Vector* const values : {&expected.dw, &expected.db, &magnitudes.dw, &magnitudes.db}) {
      for (double& value : *values) value += double{start};
    }
    EXPECT_THAT(TestDevice::Values(actual.dw), CloseTo(expected.dw, Bounds(terms, magnitudes.dw)));
    if (!shape_.has_bias) continue;
    EXPECT_THAT(TestDevice::Values(actual.db), CloseTo(expected.db, Bounds(terms, magnitudes.db)));
  }
}

TEST_P(CpuConvolution, AnyNumberOfThreadsGivesTheSameBits) {
  OnDevice one(problem_), several(problem_, 3);
  EXPECT_EQ(BytesOf(several.Forward()), BytesOf(one.Forward()));
  EXPECT_EQ(BytesOf(several.BackwardInput()), BytesOf(one.BackwardInput()));
  const auto expected = one.BackwardWeight(2.0F), actual = several.BackwardWeight(2.0F);
  EXPECT_EQ(BytesOf(actual.dw), BytesOf(expected.dw));
  if (!shape_.has_bias) return;
  EXPECT_EQ(BytesOf(actual.db), BytesOf(expected.db));
}

std::string CaseName(const ::testing::TestParamInfo<ConvolutionShape>& info) {
  const ConvolutionShape& s = info.param;
  return absl::StrCat(s.samples, "x", s.inputs, "x", s.height, "x", s.width, "_to", s.outputs, "_k",
                      s.kernel, "s", s.stride, "p", s.padding, "g", s.groups,
                      s.has_bias ? "" : "_no_bias");
}

// A single number; images of one pixel; kernels as large as the image, and larger; strides that
// leave a rest; channels that fill the library's blocks, and do not; groups, down to one channel
// each; samples that make tasks of several, and a prime number of them.
INSTANTIATE_TEST_SUITE_P(Shapes, CpuConvolution,
                         ::testing::Values(ConvolutionShape{}, ConvolutionShape{3, 5, 1, 1, 7},
                                           ConvolutionShape{2, 3, 5, 4, 6, 3, 1, 1},
                                           ConvolutionShape{1, 2, 4, 4, 3, 4},
                                           ConvolutionShape{2, 2, 2, 3, 4, 5, 1, 2, 1, false},
                                           ConvolutionShape{2, 3, 8, 9, 5, 3, 2, 1, 1, false},
                                           ConvolutionShape{3, 16, 6, 6, 32, 3, 2, 1, 1, false},
                                           ConvolutionShape{16, 32, 5, 5, 64, 1, 2},
                                           ConvolutionShape{13, 3, 9, 9, 16, 7, 2, 3},
                                           ConvolutionShape{10, 20, 4, 4, 128, 3, 1, 1, 1, false},
                                           ConvolutionShape{2, 4, 5, 5, 6, 3, 1, 1, 2},
                                           ConvolutionShape{3, 32, 6, 6, 32, 3, 1, 1, 32, false}),
                         CaseName);

TEST(CpuConvolutionRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const ConvolutionShape& shape :
       {ConvolutionShape{.samples = 0}, ConvolutionShape{.inputs = -1},
        ConvolutionShape{.height = kHuge}, ConvolutionShape{.width = 0},
        ConvolutionShape{.outputs = kHuge}, ConvolutionShape{.kernel = 2},
        ConvolutionShape{.stride = 0}, ConvolutionShape{.padding = -1},
        ConvolutionShape{.inputs = 4, .outputs = 6, .groups = 4},
        ConvolutionShape{.inputs = 6, .outputs = 4, .groups = 4},
        ConvolutionShape{.outputs = 1 << 20, .kernel = 1 << 20, .padding = 1 << 20},
        ConvolutionShape{.samples = 1 << 20, .inputs = 1 << 20, .height = 1 << 20}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::convolution_test
