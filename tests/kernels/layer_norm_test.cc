#include "kernels/ops/layer_norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::layer_norm_test {
namespace {

using reference::RowStatistics;
using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

constexpr LayerNormShape Rms(int64_t rows, int64_t features) {
  return {.rows = rows, .features = features, .epsilon = 0.5F, .centers = false};
}

struct Problem {
  // x is normal around `mean` with the given deviation.
  explicit Problem(const LayerNormShape& shape_in, float mean = 0.5F, float deviation = 2.0F)
      : shape(shape_in) {
    const int64_t R = shape.rows, C = shape.features;
    x = RandomNormal(R * C, 1);
    for (float& value : x) value = mean + deviation * value;
    gamma = RandomNormal(C, 2);
    beta = RandomNormal(C, 3);
    dy = RandomNormal(R * C, 4);
    dgamma = RandomNormal(C, 5);
    dbeta = RandomNormal(C, 6);
    addend = RandomNormal(R * C, 7);
    const auto forward =
        reference::LayerNormForward(shape, ToDouble(x), ToDouble(gamma), ToDouble(beta));
    statistics.assign(forward.statistics.begin(), forward.statistics.end());
  }

  LayerNormShape shape;
  std::vector<float> x, gamma, beta, dy, dgamma, dbeta, addend, statistics;
};

// Of the addend to x: not at all, by ElementwiseOps, or by the layer norm itself.
enum class Add { kNo, kBefore, kWithin };

// A problem on a device. The outputs of an operation hold not-a-number before it.
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1) : problem_(problem), device_(threads) {
    auto op = device_.ops().Create(problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  struct ForwardResult {
    Tensor statistics, y, x;
  };
  ForwardResult Forward(Add add = Add::kNo) {
    const Tensor x = this->x(), addend = device_.Operand(matrix(), problem_.addend);
    const Tensor statistics = device_.Result(statistics_shape());
    const Tensor y = device_.Result(matrix());
    EXPECT_OK(device_.Run([&](Stream& stream) -> absl::Status {
      if (add == Add::kBefore) {
        RETURN_IF_ERROR(device_.ops().elementwise().Add(stream, x, addend, x));
      }
      return op_->Forward(
          stream, x, device_.Operand(features(), problem_.gamma),
          problem_.shape.centers ? device_.Operand(features(), problem_.beta) : Tensor{},
          add == Add::kWithin ? addend : Tensor{}, statistics, y);
    }));
    return {statistics, y, x};
  }

  Tensor BackwardInput(bool in_place = false) {
    const Tensor dy = device_.Operand(matrix(), problem_.dy);
    const Tensor dx = in_place ? dy : device_.Result(matrix());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardInput(stream, dy, x(), device_.Operand(features(), problem_.gamma),
                                statistics(), /*addend=*/{}, dx);
    }));
    return dx;
  }

  struct WeightGradient {
    Tensor dgamma, dbeta;
  };
  WeightGradient BackwardWeight(bool accumulate) {
    const Tensor dgamma =
        accumulate ? device_.Operand(features(), problem_.dgamma) : device_.Result(features());
    const Tensor dbeta = !problem_.shape.centers ? Tensor{}
                         : accumulate            ? device_.Operand(features(), problem_.dbeta)
                                                 : device_.Result(features());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, device_.Operand(matrix(), problem_.dy), x(), statistics(),
                                 dgamma, dbeta, accumulate, /*workspace=*/nullptr);
    }));
    return {dgamma, dbeta};
  }

  struct Gradients {
    Tensor dx;
    WeightGradient weight;
  };
  // Both at once, over numbers that are not to be added to.
  Gradients Backward() {
    const Tensor dx = device_.Result(matrix()), dgamma = device_.Result(features());
    const Tensor dbeta = problem_.shape.centers ? device_.Result(features()) : Tensor{};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Backward(stream, device_.Operand(matrix(), problem_.dy), x(),
                           device_.Operand(features(), problem_.gamma), statistics(), /*addend=*/{},
                           dx, dgamma, dbeta, /*accumulate=*/false, /*workspace=*/nullptr);
    }));
    return {dx, {dgamma, dbeta}};
  }

 private:
  Shape matrix() const { return {problem_.shape.rows, problem_.shape.features}; }
  Shape features() const { return {problem_.shape.features}; }
  Tensor x() { return device_.Operand(matrix(), problem_.x); }
  Tensor statistics() { return device_.Operand(statistics_shape(), problem_.statistics); }
  Shape statistics_shape() const {
    return problem_.shape.centers ? Shape{problem_.shape.rows, 2} : Shape{problem_.shape.rows};
  }

  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<LayerNormOp> op_;
};

// Bounds of the statistics of one row: absolute for the mean, relative for rstd. The mean is a sum
// of C terms and a division. A variance around a mean that is off by d is too large by d^2; its own
// sum has C + 4 roundings. RMSNorm's mean is 0 exactly.
struct StatisticsBound {
  StatisticsBound(const LayerNormShape& shape, reference::Values row, double rstd) {
    const auto C = static_cast<int64_t>(row.size());
    const auto elementary = static_cast<int64_t>(PrecisionOf(DType::kFloat32).elementary);
    double sum_abs = 0;
    for (double value : row) sum_abs += std::fabs(value);
    mean = shape.centers ? Gamma(C + elementary) * sum_abs / static_cast<double>(C) : 0.0;
    const double shift = mean * rstd;
    relative_rstd = Gamma(C + 4 + 2 * elementary) + shift * shift;
  }
  double mean;
  double relative_rstd;
};

void ExpectForwardMatchesReference(const Problem& problem) {
  OnDevice device(problem);
  const auto actual = device.Forward();
  const auto C = static_cast<size_t>(problem.shape.features);
  const Vector x = ToDouble(problem.x), gamma = ToDouble(problem.gamma);
  const auto expected =
      reference::LayerNormForward(problem.shape, x, gamma, ToDouble(problem.beta));
  Vector statistics_bound, y_bound;
  for (size_t r = 0; r < static_cast<size_t>(problem.shape.rows); ++r) {
    const reference::Values row = reference::Values(x).subspan(r * C, C);
    const auto [mean, rstd] = RowStatistics(problem.shape, expected.statistics, r);
    const StatisticsBound bound(problem.shape, row, rstd);
    if (problem.shape.centers) statistics_bound.push_back(bound.mean);
    statistics_bound.push_back(bound.relative_rstd * rstd);
    for (size_t c = 0; c < C; ++c) {
      const double shift = bound.mean * rstd * std::fabs(gamma[c]);
      const double scaled = std::fabs((row[c] - mean) * rstd * gamma[c]);
      y_bound.push_back(shift + (scaled + shift) * (bound.relative_rstd + Gamma(4)) +
                        Gamma(1) * std::fabs(expected.y[r * C + c]));
    }
  }
  EXPECT_THAT(TestDevice::Values(actual.statistics),
              CloseTo(expected.statistics, statistics_bound));
  EXPECT_THAT(TestDevice::Values(actual.y), CloseTo(expected.y, y_bound));
}

void ExpectBackwardInputMatchesReference(const Problem& problem) {
  const auto C = static_cast<size_t>(problem.shape.features);
  const Vector x = ToDouble(problem.x), gamma = ToDouble(problem.gamma);
  const Vector dy = ToDouble(problem.dy), statistics = ToDouble(problem.statistics);
  Vector bounds;
  for (size_t r = 0; r < static_cast<size_t>(problem.shape.rows); ++r) {
    const auto [mean, rstd] = RowStatistics(problem.shape, statistics, r);
    Vector g(C), xhat(C);
    double mean_g = 0, mean_g_xhat = 0;
    for (size_t c = 0; c < C; ++c) {
      g[c] = std::fabs(dy[r * C + c] * gamma[c]);
      xhat[c] = std::fabs((x[r * C + c] - mean) * rstd);
      if (problem.shape.centers) mean_g += g[c] / static_cast<double>(C);
      mean_g_xhat += g[c] * xhat[c] / static_cast<double>(C);
    }
    // On the longest path, that of mean(g xhat): 4 roundings of a term, C of the sum, 4 of the
    // division, 6 after it.
    for (size_t c = 0; c < C; ++c) {
      bounds.push_back(Gamma(problem.shape.features + 14) * rstd *
                       (g[c] + mean_g + xhat[c] * mean_g_xhat));
    }
  }
  EXPECT_THAT(
      TestDevice::Values(OnDevice(problem).BackwardInput()),
      CloseTo(reference::LayerNormBackwardInput(problem.shape, dy, x, gamma, statistics), bounds));
}

void ExpectBackwardWeightMatchesReference(const Problem& problem, bool accumulate) {
  OnDevice device(problem);
  const auto actual = device.BackwardWeight(accumulate);
  const auto R = static_cast<size_t>(problem.shape.rows);
  const auto C = static_cast<size_t>(problem.shape.features);
  const Vector statistics = ToDouble(problem.statistics);
  auto expected = reference::LayerNormBackwardWeight(problem.shape, ToDouble(problem.dy),
                                                     ToDouble(problem.x), statistics);
  const bool centers = problem.shape.centers;
  Vector dgamma_bound(C), dbeta_bound(expected.dbeta.size());
  for (size_t c = 0; c < C; ++c) {
    double dgamma_abs = 0, dbeta_abs = 0;
    if (accumulate) {
      expected.dgamma[c] += problem.dgamma[c];
      if (centers) expected.dbeta[c] += problem.dbeta[c];
      dgamma_abs = std::fabs(problem.dgamma[c]);
      dbeta_abs = std::fabs(problem.dbeta[c]);
    }
    for (size_t r = 0; r < R; ++r) {
      const auto [mean, rstd] = RowStatistics(problem.shape, statistics, r);
      const double dy = std::fabs(problem.dy[r * C + c]);
      dbeta_abs += dy;
      dgamma_abs += dy * std::fabs(problem.x[r * C + c] - mean) * rstd;
    }
    // A term of dgamma has 3 roundings.
    dgamma_bound[c] = Gamma(problem.shape.rows + 4) * dgamma_abs;
    if (centers) dbeta_bound[c] = Gamma(problem.shape.rows + 1) * dbeta_abs;
  }
  EXPECT_THAT(TestDevice::Values(actual.dgamma), CloseTo(expected.dgamma, dgamma_bound));
  if (!centers) return;
  EXPECT_THAT(TestDevice::Values(actual.dbeta), CloseTo(expected.dbeta, dbeta_bound));
}

class CpuLayerNorm : public ::testing::TestWithParam<LayerNormShape> {
 protected:
  const Problem problem_{GetParam()};
};

TEST_P(CpuLayerNorm, ForwardMatchesReference) { ExpectForwardMatchesReference(problem_); }

TEST_P(CpuLayerNorm, ForwardOfASumHasTheBitsOfAddAndForward) {
  OnDevice apart(problem_), fused(problem_);
  const auto expected = apart.Forward(Add::kBefore);
  const auto actual = fused.Forward(Add::kWithin);
  EXPECT_EQ(BytesOf(actual.x), BytesOf(expected.x));
  EXPECT_EQ(BytesOf(actual.statistics), BytesOf(expected.statistics));
  EXPECT_EQ(BytesOf(actual.y), BytesOf(expected.y));
}

TEST_P(CpuLayerNorm, BackwardInputMatchesReference) {
  ExpectBackwardInputMatchesReference(problem_);
}

TEST_P(CpuLayerNorm, BackwardInputMayOverwriteDy) {
  OnDevice separate(problem_), in_place(problem_);
  EXPECT_EQ(BytesOf(in_place.BackwardInput(/*in_place=*/true)), BytesOf(separate.BackwardInput()));
}

TEST_P(CpuLayerNorm, BackwardWeightOverwritesWithReference) {
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/false);
}

TEST_P(CpuLayerNorm, BackwardWeightAddsReference) {
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/true);
}

TEST_P(CpuLayerNorm, BackwardHasTheBitsOfBothApart) {
  OnDevice device(problem_);
  const auto [dx, weight] = device.Backward();
  const auto expected = device.BackwardWeight(/*accumulate=*/false);
  EXPECT_EQ(BytesOf(dx), BytesOf(device.BackwardInput()));
  EXPECT_EQ(BytesOf(weight.dgamma), BytesOf(expected.dgamma));
  if (!problem_.shape.centers) return;
  EXPECT_EQ(BytesOf(weight.dbeta), BytesOf(expected.dbeta));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuLayerNorm,
    ::testing::Values(LayerNormShape{1, 1}, LayerNormShape{3, 1}, LayerNormShape{1, 64},
                      LayerNormShape{5, 7, 0.5F}, LayerNormShape{17, 33}, LayerNormShape{37, 577},
                      LayerNormShape{4, 2304}, Rms(3, 1), Rms(5, 7), Rms(17, 33), Rms(37, 577)),
    [](const auto& param_info) {
      return absl::StrCat(param_info.param.centers ? "" : "rms_", param_info.param.rows, "x",
                          param_info.param.features);
    });

// mean(x^2) - mean(x)^2 would lose all digits of the variance.
TEST(CpuLayerNormForward, KeepsTheVarianceOfRowsFarFromZero) {
  ExpectForwardMatchesReference(Problem({.rows = 5, .features = 100}, /*mean=*/4096.0F, 1.0F));
}

TEST(CpuLayerNormForward, RowsOfOneValueGiveBeta) {
  const Problem problem({.rows = 3, .features = 64}, /*mean=*/1.0F, /*deviation=*/0.0F);
  OnDevice device(problem);
  const Vector y = TestDevice::Values(device.Forward().y);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(absl::MakeConstSpan(y).subspan(r * 64, 64), ToDouble(problem.beta)) << "row " << r;
  }
}

class CpuLayerNormThreads : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Centers, CpuLayerNormThreads, ::testing::Bool());

TEST_P(CpuLayerNormThreads, AnyNumberGivesTheSameBits) {
  const Problem problem({.rows = 67, .features = 1201, .centers = GetParam()});
  OnDevice one(problem, 1);
  const auto forward = one.Forward(Add::kWithin);
  const Tensor dx = one.BackwardInput();
  const auto weight_gradient = one.BackwardWeight(/*accumulate=*/true);
  for (int threads : {2, 3}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    OnDevice several(problem, threads);
    const auto [statistics, y, x] = several.Forward(Add::kWithin);
    EXPECT_EQ(BytesOf(x), BytesOf(forward.x));
    EXPECT_EQ(BytesOf(statistics), BytesOf(forward.statistics));
    EXPECT_EQ(BytesOf(y), BytesOf(forward.y));
    EXPECT_EQ(BytesOf(several.BackwardInput()), BytesOf(dx));
    const auto [dgamma, dbeta] = several.BackwardWeight(/*accumulate=*/true);
    EXPECT_EQ(BytesOf(dgamma), BytesOf(weight_gradient.dgamma));
    if (!GetParam()) continue;
    EXPECT_EQ(BytesOf(dbeta), BytesOf(weight_gradient.dbeta));
  }
}

class CpuLayerNormRefusal : public ::testing::TestWithParam<LayerNormShape> {};

TEST_P(CpuLayerNormRefusal, IsAnInvalidArgument) {
  TestDevice device;
  EXPECT_THAT(device.ops().Create(GetParam()), StatusIs(absl::StatusCode::kInvalidArgument));
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
INSTANTIATE_TEST_SUITE_P(Shapes, CpuLayerNormRefusal,
                         ::testing::Values(LayerNormShape{.rows = 0}, LayerNormShape{.rows = -1},
                                           LayerNormShape{.features = 0},
                                           LayerNormShape{.features = -1},
                                           LayerNormShape{.rows = kHuge},
                                           LayerNormShape{.features = kHuge},
                                           LayerNormShape{.epsilon = 0.0F}));

}  // namespace
}  // namespace stagecoach::kernels::layer_norm_test
