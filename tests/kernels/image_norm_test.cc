#include "kernels/ops/image_norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
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

namespace stagecoach::kernels::image_norm_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

std::vector<float> Rounded(const Vector& values) { return {values.begin(), values.end()}; }

// The statistics are the exact ones, rounded: backward is tested on operands of its own.
struct Problem {
  explicit Problem(const ImageNormShape& shape_in)
      : shape(shape_in), elements(shape.samples * shape.channels * shape.area) {
    x = RandomNormal(elements, 1);
    for (float& value : x) value = 2.0F * value + 1.0F;
    gamma = RandomNormal(shape.channels, 2);
    beta = RandomNormal(shape.channels, 3);
    dy = RandomNormal(elements, 4);
    exact = reference::ImageNormForward(shape, ToDouble(x), ToDouble(gamma), ToDouble(beta));
    mean = Rounded(exact.mean);
    variance = Rounded(exact.variance);
  }

  ImageNormShape shape;
  int64_t elements;
  std::vector<float> x, gamma, beta, dy, mean, variance;
  reference::ImageNormOutput exact;
};

class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1) : problem_(problem), device_(threads) {
    auto op = device_.ops().Create(problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  struct Output {
    Tensor mean, variance, y;
  };
  Output Forward() {
    const Output out{Result(problem_.shape.sets()), Result(problem_.shape.sets()),
                     Result(problem_.elements)};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(stream, On(problem_.x), On(problem_.gamma), On(problem_.beta), out.mean,
                          out.variance, out.y);
    }));
    return out;
  }
  Tensor Apply(const Tensor& mean, const Tensor& variance) {
    const Tensor y = Result(problem_.elements);
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Apply(stream, On(problem_.x), On(problem_.gamma), On(problem_.beta), mean,
                        variance, y);
    }));
    return y;
  }
  Tensor BackwardInput() {
    const Tensor dx = Result(problem_.elements);
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardInput(stream, On(problem_.dy), On(problem_.x), On(problem_.gamma),
                                On(problem_.mean), On(problem_.variance), dx);
    }));
    return dx;
  }
  struct Pair {
    Tensor first, second;
  };
  Pair BackwardWeight(float start) {
    const Pair gradients{Start(problem_.shape.channels, start),
                         Start(problem_.shape.channels, start)};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, On(problem_.dy), On(problem_.x), On(problem_.mean),
                                 On(problem_.variance), gradients.first, gradients.second,
                                 start != 0.0F);
    }));
    return gradients;
  }
  Pair Collect(float start) {
    const Pair sums{Start(problem_.shape.sets(), start), Start(problem_.shape.sets(), start)};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Collect(stream, On(problem_.mean), On(problem_.variance), sums.first, sums.second,
                          start != 0.0F);
    }));
    return sums;
  }

 private:
  Tensor On(const std::vector<float>& values) {
    return device_.Operand(Shape{std::ssize(values)}, values);
  }
  Tensor Result(int64_t elements) { return device_.Result(Shape{elements}); }
  Tensor Start(int64_t elements, float start) {
    if (start == 0.0F) return Result(elements);
    return On(std::vector<float>(static_cast<size_t>(elements), start));
  }

  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<ImageNormOp> op_;
};

class CpuImageNorm : public ::testing::TestWithParam<ImageNormShape> {
 protected:
  const ImageNormShape shape_ = GetParam();
  const Problem problem_{shape_};
  const Vector x_ = ToDouble(problem_.x), dy_ = ToDouble(problem_.dy);
  const Vector gamma_ = ToDouble(problem_.gamma), beta_ = ToDouble(problem_.beta);
  const int64_t n_ = shape_.set_size();

  size_t SetOf(size_t i) const {
    return static_cast<size_t>(reference::ImageNormSetOf(shape_, static_cast<int64_t>(i)));
  }
  size_t ChannelOf(size_t i) const {
    return static_cast<size_t>(reference::ImageNormChannelOf(shape_, static_cast<int64_t>(i)));
  }
};

// How far forward may be off, step by step: the mean by that of a sum of n; x - mean by that and a
// rounding; the variance by what that does to squares, and by that of their sum.
TEST_P(CpuImageNorm, ForwardMatchesReference) {
  const double u = Gamma(1);
  Vector mean_magnitude(problem_.mean.size()), mean_bound(problem_.mean.size());
  Vector variance_bound(problem_.mean.size()), y_bound(x_.size());
  const auto n = static_cast<double>(n_);
  for (size_t i = 0; i < x_.size(); ++i) mean_magnitude[SetOf(i)] += std::fabs(x_[i]) / n;
  for (size_t s = 0; s < mean_bound.size(); ++s) {
    mean_bound[s] = Gamma(n_ + 1) * mean_magnitude[s];
  }
  const auto deviation = [&](size_t i) { return std::fabs(x_[i] - problem_.exact.mean[SetOf(i)]); };
  const auto deviation_bound = [&](size_t i) {
    return mean_bound[SetOf(i)] * (1.0 + u) + u * deviation(i);
  };
  for (size_t i = 0; i < x_.size(); ++i) {
    const double d = deviation(i), e = deviation_bound(i);
    variance_bound[SetOf(i)] += (2.0 * d * e + e * e + Gamma(n_ + 3) * (d + e) * (d + e)) / n;
  }
  for (size_t i = 0; i < x_.size(); ++i) {
    const size_t s = SetOf(i);
    const double of_root = problem_.exact.variance[s] + double{shape_.epsilon};
    ASSERT_LT(variance_bound[s], 0.1 * of_root) << "the bound would not hold";
    const double rstd = 1.0 / std::sqrt(of_root);
    const double rstd_bound = rstd * (0.6 * variance_bound[s] / of_root + Gamma(8));
    const double g = std::fabs(gamma_[ChannelOf(i)]);
    const double scaled = g * deviation(i) * rstd;
    y_bound[i] = g * (deviation_bound(i) * (rstd + rstd_bound) + deviation(i) * rstd_bound) +
                 Gamma(4) * (2.0 * scaled + std::fabs(beta_[ChannelOf(i)]));
  }
  OnDevice device(problem_);
  const auto actual = device.Forward();
  EXPECT_THAT(TestDevice::Values(actual.mean), CloseTo(problem_.exact.mean, mean_bound));
  EXPECT_THAT(TestDevice::Values(actual.variance),
              CloseTo(problem_.exact.variance, variance_bound));
  EXPECT_THAT(TestDevice::Values(actual.y), CloseTo(problem_.exact.y, y_bound));
  EXPECT_EQ(BytesOf(device.Apply(actual.mean, actual.variance)), BytesOf(actual.y));
}

// Every path from an operand to the result passes at most n + 24 roundings.
TEST_P(CpuImageNorm, BackwardInputMatchesReference) {
  const Vector mean = ToDouble(problem_.mean), variance = ToDouble(problem_.variance);
  Vector sum(mean.size()), sum_xhat(mean.size()), bounds(x_.size());
  const auto rstd = [&](size_t i) {
    return 1.0 / std::sqrt(variance[SetOf(i)] + double{shape_.epsilon});
  };
  const auto g = [&](size_t i) { return std::fabs(dy_[i] * gamma_[ChannelOf(i)]); };
  const auto xhat = [&](size_t i) { return std::fabs(x_[i] - mean[SetOf(i)]) * rstd(i); };
  for (size_t i = 0; i < x_.size(); ++i) {
    sum[SetOf(i)] += g(i) / static_cast<double>(n_);
    sum_xhat[SetOf(i)] += g(i) * xhat(i) / static_cast<double>(n_);
  }
  for (size_t i = 0; i < x_.size(); ++i) {
    bounds[i] = Gamma(n_ + 24) * rstd(i) * (g(i) + sum[SetOf(i)] + xhat(i) * sum_xhat[SetOf(i)]);
  }
  EXPECT_THAT(
      TestDevice::Values(OnDevice(problem_).BackwardInput()),
      CloseTo(reference::ImageNormBackwardInput(shape_, dy_, x_, gamma_, mean, variance), bounds));
}

TEST_P(CpuImageNorm, BackwardWeightMatchesReferenceAndAddsToWhatThereIs) {
  const Vector mean = ToDouble(problem_.mean), variance = ToDouble(problem_.variance);
  const auto exact = reference::ImageNormBackwardWeight(shape_, dy_, x_, mean, variance);
  const int64_t terms = problem_.elements / shape_.channels;
  for (const float start : {0.0F, 2.0F}) {
    Vector dgamma = exact.dgamma, dbeta = exact.dbeta;
    Vector dgamma_bounds(dgamma.size()), dbeta_bounds(dbeta.size());
    for (size_t i = 0; i < x_.size(); ++i) {
      const size_t s = SetOf(i), c = ChannelOf(i);
      const double rstd = 1.0 / std::sqrt(variance[s] + double{shape_.epsilon});
      dgamma_bounds[c] += Gamma(terms + 16) * std::fabs(dy_[i] * (x_[i] - mean[s])) * rstd;
      dbeta_bounds[c] += Gamma(terms + 1) * std::fabs(dy_[i]);
    }
    for (size_t c = 0; c < dgamma.size(); ++c) {
      dgamma[c] += double{start};
      dbeta[c] += double{start};
      dgamma_bounds[c] += Gamma(terms + 16) * double{start};
      dbeta_bounds[c] += Gamma(terms + 1) * double{start};
    }
    OnDevice device(problem_);
    const auto actual = device.BackwardWeight(start);
    EXPECT_THAT(TestDevice::Values(actual.first), CloseTo(dgamma, dgamma_bounds));
    EXPECT_THAT(TestDevice::Values(actual.second), CloseTo(dbeta, dbeta_bounds));
  }
}

TEST_P(CpuImageNorm, CollectsTheMeanAndTheUnbiasedVariance) {
  if (n_ == 1) return;  // there is none
  for (const float start : {0.0F, 2.0F}) {
    OnDevice device(problem_);
    const auto sums = device.Collect(start);
    Vector mean, mean_bounds, variance, variance_bounds;
    for (size_t s = 0; s < problem_.mean.size(); ++s) {
      const double m = double{problem_.mean[s]}, v = double{problem_.variance[s]};
      const double unbiased = v * static_cast<double>(n_) / static_cast<double>(n_ - 1);
      mean.push_back(m + double{start});
      mean_bounds.push_back(Gamma(1) * (std::fabs(m) + double{start}));
      variance.push_back(unbiased + double{start});
      variance_bounds.push_back(Gamma(6) * (unbiased + double{start}));
    }
    EXPECT_THAT(TestDevice::Values(sums.first), CloseTo(mean, mean_bounds));
    EXPECT_THAT(TestDevice::Values(sums.second), CloseTo(variance, variance_bounds));
  }
}

TEST_P(CpuImageNorm, AnyNumberOfThreadsGivesTheSameBits) {
  OnDevice one(problem_), several(problem_, 3);
  EXPECT_EQ(BytesOf(several.Forward().y), BytesOf(one.Forward().y));
  EXPECT_EQ(BytesOf(several.BackwardInput()), BytesOf(one.BackwardInput()));
  const auto expected = one.BackwardWeight(1.0F), actual = several.BackwardWeight(1.0F);
  EXPECT_EQ(BytesOf(actual.first), BytesOf(expected.first));
  EXPECT_EQ(BytesOf(actual.second), BytesOf(expected.second));
}

std::string CaseName(const ::testing::TestParamInfo<ImageNormShape>& info) {
  const ImageNormShape& s = info.param;
  return absl::StrCat(s.samples, "x", s.channels, "x", s.area, "_groups", s.groups);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuImageNorm,
                         ::testing::Values(ImageNormShape{2, 1, 1}, ImageNormShape{3, 5, 7},
                                           ImageNormShape{8, 20, 64, 0, 1e-3F},
                                           ImageNormShape{2, 6, 5, 1}, ImageNormShape{3, 6, 9, 3},
                                           ImageNormShape{2, 4, 33, 4, 1e-3F}),
                         CaseName);

TEST(CpuImageNormRefusal, IsAnInvalidArgument) {
  TestDevice device;
  for (const ImageNormShape& shape :
       {ImageNormShape{.samples = 0}, ImageNormShape{.channels = -1}, ImageNormShape{.area = 0},
        ImageNormShape{.channels = 6, .groups = 4}, ImageNormShape{.groups = -1},
        ImageNormShape{.epsilon = 0.0F}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::image_norm_test
