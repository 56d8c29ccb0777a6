#include "kernels/ops/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/elementwise_kernels.h"
#include "kernels/cuda/ops/layer_norm_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::layer_norm_test {
namespace {

using reference::RowStatistics;
using reference::Vector;
using testing::CloseTo;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::Gamma;
using testing::HaveTheSameBits;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::PrecisionOf;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

// Names: R rows, C features; r, c index them.

// The roundings that a term of a row's sum can meet: a thread adds at most 32 values, or a 512th of
// the row; a warp adds its lanes in 5 steps, a block its 16 warps.
int64_t RowSumRoundings(int64_t features) {
  return std::min(features, std::max<int64_t>(32, features / 512 + 8) + 5 + 16);
}

constexpr LayerNormShape Rms(int64_t rows, int64_t features) {
  return {.rows = rows, .features = features, .epsilon = 0.5F, .centers = false};
}

struct Problem {
  // x is normal around `mean` with the given deviation.
  Problem(DType type_in, const LayerNormShape& shape_in, float mean = 0.5F, float deviation = 2.0F)
      : type(type_in), shape(shape_in) {
    const int64_t R = shape.rows, C = shape.features;
    x = RandomNormal(R * C, 1);
    for (float& value : x) value = mean + deviation * value;
    x = RoundedTo(type, x);
    gamma = RoundedTo(type, RandomNormal(C, 2));
    beta = RoundedTo(type, RandomNormal(C, 3));
    dy = RoundedTo(type, RandomNormal(R * C, 4));
    addend = RoundedTo(type, RandomNormal(R * C, 5));
    dgamma = RandomNormal(C, 6);
    dbeta = RandomNormal(C, 7);
    SetStatistics();
  }

  // What BackwardInput and BackwardWeight read, rounded like what Forward would write.
  void SetStatistics() {
    const auto forward =
        reference::LayerNormForward(shape, ToDouble(x), ToDouble(gamma), ToDouble(beta));
    statistics.assign(forward.statistics.begin(), forward.statistics.end());
  }

  DType type;
  LayerNormShape shape;
  int64_t offset = 0;  // of each tensor of `type`, in elements
  std::vector<float> x, gamma, beta, dy, addend, dgamma, dbeta, statistics;
};

// Of the addend to x: not at all, by a kernel of its own, or by the layer norm.
enum class Add { kNo, kBefore, kWithin };

struct ForwardResult {
  Vector statistics, y, x;

  friend bool operator==(const ForwardResult&, const ForwardResult&) = default;
};
ForwardResult RunForward(const Problem& problem, Add add = Add::kNo) {
  const int64_t R = problem.shape.rows, C = problem.shape.features;
  const auto results = InEveryOrder([&](EmulatedGpu& gpu) {
    const auto operand = [&](const std::vector<float>& values) {
      return gpu.Operand(problem.type, values, problem.offset);
    };
    const Tensor x = operand(problem.x), gamma = operand(problem.gamma);
    const Tensor beta = operand(problem.beta);
    const Tensor addend = operand(problem.addend);
    const bool centers = problem.shape.centers;
    const Tensor statistics = gpu.Result(DType::kFloat32, centers ? R * 2 : R);
    const Tensor y = gpu.Result(problem.type, R * C, problem.offset);
    if (add == Add::kBefore) {
      EXPECT_EQ(
          LaunchAdd(gpu.stream(), ElementTypeOf(problem.type), R * C, x.data, addend.data, x.data),
          cudaSuccess);
    }
    EXPECT_EQ(LaunchLayerNormForward(gpu.stream(), ElementTypeOf(problem.type),
                                     {.rows = R,
                                      .features = C,
                                      .epsilon = problem.shape.epsilon,
                                      .centers = centers,
                                      .x = x.data,
                                      .addend = add == Add::kWithin ? addend.data : nullptr,
                                      .gamma = gamma.data,
                                      .beta = centers ? beta.data : nullptr,
                                      .statistics = statistics.f32(),
                                      .y = y.data}),
              cudaSuccess);
    return std::vector<Vector>{gpu.Values(statistics), gpu.Values(y), gpu.Values(x)};
  });
  return {results[0], results[1], results[2]};
}

// Bounds of the statistics of one row: absolute for the mean, relative for rstd. The mean is a sum
// of C terms and a division. A variance around a mean that is off by d is too large by d^2; its own
// sum has the roundings of each term, 4, besides. RMSNorm's mean is 0 exactly.
struct StatisticsBound {
  StatisticsBound(const LayerNormShape& shape, reference::Values row, double rstd) {
    const int64_t roundings = RowSumRoundings(static_cast<int64_t>(row.size()));
    const auto elementary = static_cast<int64_t>(PrecisionOf(DType::kFloat32).elementary);
    double sum_abs = 0;
    for (double value : row) sum_abs += std::fabs(value);
    mean = 0.0;
    if (shape.centers) {
      mean = Gamma(roundings + elementary) * sum_abs / static_cast<double>(row.size());
    }
    const double shift = mean * rstd;
    relative_rstd = Gamma(roundings + 4 + 2 * elementary) + shift * shift;
  }
  double mean;
  double relative_rstd;
};

void ExpectForwardMatches(const Problem& problem, const Vector& x, const ForwardResult& actual) {
  const auto C = static_cast<size_t>(problem.shape.features);
  const Vector gamma = ToDouble(problem.gamma);
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
      const double y = expected.y[r * C + c];
      y_bound.push_back(StoredBound(
          y, shift + (scaled + shift) * (bound.relative_rstd + Gamma(4)) + Gamma(1) * std::fabs(y),
          problem.type));
    }
  }
  EXPECT_THAT(actual.statistics, CloseTo(expected.statistics, statistics_bound));
  EXPECT_THAT(actual.y, CloseTo(expected.y, y_bound));
}

// What is normalized is the sum as it is stored.
void ExpectForwardOfASumMatches(const Problem& problem) {
  const ForwardResult actual = RunForward(problem, Add::kWithin);
  std::vector<float> sum;
  for (size_t i = 0; i < problem.x.size(); ++i) sum.push_back(problem.x[i] + problem.addend[i]);
  const Vector rounded = ToDouble(RoundedTo(problem.type, sum));
  EXPECT_TRUE(actual.x == rounded) << "the sum must be exact but for one rounding";
  ExpectForwardMatches(problem, rounded, actual);
}

struct BackwardOptions {
  bool input = false, weight = false;  // what is computed
  bool addend = false;
  bool in_place = false;
  bool accumulate = false;
};
// dx, dgamma and dbeta; empty where it is not computed.
std::vector<Vector> RunBackward(const Problem& problem, const BackwardOptions& options) {
  const int64_t R = problem.shape.rows, C = problem.shape.features;
  const bool centers = problem.shape.centers;
  return InEveryOrder([&](EmulatedGpu& gpu) {
    const auto operand = [&](const std::vector<float>& values) {
      return gpu.Operand(problem.type, values, problem.offset);
    };
    const auto sums = [&](const std::vector<float>& values) {
      return options.accumulate ? gpu.Operand(DType::kFloat32, values)
                                : gpu.Result(DType::kFloat32, C);
    };
    const Tensor dy = operand(problem.dy), x = operand(problem.x);
    LayerNormBackwardArguments arguments = {
        .rows = R,
        .features = C,
        .centers = centers,
        .dy = dy.data,
        .x = x.data,
        .statistics = gpu.Operand(DType::kFloat32, problem.statistics).f32()};
    Tensor dx, dgamma, dbeta;
    if (options.input) {
      dx = options.in_place ? dy : gpu.Result(problem.type, R * C, problem.offset);
      arguments.gamma = operand(problem.gamma).data;
      if (options.addend) arguments.addend = operand(problem.addend).data;
      arguments.dx = dx.data;
    }
    if (options.weight) {
      dgamma = sums(problem.dgamma);
      if (centers) dbeta = sums(problem.dbeta);
      arguments.dgamma = dgamma.f32();
      arguments.dbeta = dbeta.f32();
      arguments.accumulate = options.accumulate;
      arguments.workspace =
          gpu.Result(DType::kFloat32, LayerNormWorkspaceBytes(R, C, centers) / 4).f32();
    }
    EXPECT_EQ(LaunchLayerNormBackward(gpu.stream(), ElementTypeOf(problem.type), arguments),
              cudaSuccess);
    const auto values = [&](const Tensor& tensor) {
      return tensor.empty() ? Vector{} : gpu.Values(tensor);
    };
    return std::vector<Vector>{values(dx), values(dgamma), values(dbeta)};
  });
}

void ExpectBackwardInputMatches(const Problem& problem, BackwardOptions options) {
  const int64_t R = problem.shape.rows;
  const auto C = static_cast<size_t>(problem.shape.features);
  options.input = true;
  const auto results = RunBackward(problem, options);
  const Vector x = ToDouble(problem.x), gamma = ToDouble(problem.gamma);
  const Vector dy = ToDouble(problem.dy), statistics = ToDouble(problem.statistics);
  Vector expected = reference::LayerNormBackwardInput(problem.shape, dy, x, gamma, statistics);
  Vector bounds;
  for (size_t r = 0; r < static_cast<size_t>(R); ++r) {
    const auto [mean, rstd] = RowStatistics(problem.shape, statistics, r);
    Vector g(C), xhat(C);
    double mean_g = 0, mean_g_xhat = 0;
    for (size_t c = 0; c < C; ++c) {
      g[c] = std::fabs(dy[r * C + c] * gamma[c]);
      xhat[c] = std::fabs((x[r * C + c] - mean) * rstd);
      if (problem.shape.centers) mean_g += g[c] / static_cast<double>(C);
      mean_g_xhat += g[c] * xhat[c] / static_cast<double>(C);
    }
    // On the longest path, that of mean(g xhat): 4 roundings of a term, those of the sum, 4 of the
    // division, 6 after it and one of the addend.
    const double relative = Gamma(RowSumRoundings(problem.shape.features) + 15);
    for (size_t c = 0; c < C; ++c) {
      const size_t i = r * C + c;
      double magnitude = rstd * (g[c] + mean_g + xhat[c] * mean_g_xhat);
      if (options.addend) {
        expected[i] += problem.addend[i];
        magnitude += std::fabs(problem.addend[i]);
      }
      bounds.push_back(StoredBound(expected[i], relative * magnitude, problem.type));
    }
  }
  EXPECT_THAT(results[0], CloseTo(expected, bounds));
}

void ExpectBackwardWeightMatches(const Problem& problem, bool accumulate) {
  const int64_t rows = problem.shape.rows, features = problem.shape.features;
  const bool centers = problem.shape.centers;
  const auto actual = RunBackward(problem, {.weight = true, .accumulate = accumulate});
  const auto R = static_cast<size_t>(rows), C = static_cast<size_t>(features);
  const Vector statistics = ToDouble(problem.statistics);
  auto expected = reference::LayerNormBackwardWeight(problem.shape, ToDouble(problem.dy),
                                                     ToDouble(problem.x), statistics);
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
    // A term of dgamma has 3 roundings; a column has R terms and what was there.
    dgamma_bound[c] = Gamma(rows + 4) * dgamma_abs;
    if (centers) dbeta_bound[c] = Gamma(rows + 1) * dbeta_abs;
  }
  EXPECT_THAT(actual[1], CloseTo(expected.dgamma, dgamma_bound));
  EXPECT_THAT(actual[2], CloseTo(expected.dbeta, dbeta_bound));
}

void ExpectTheSameBitsAtOnceAndApart(const Problem& problem, bool addend) {
  const bool accumulate = addend;
  const auto once = RunBackward(
      problem, {.input = true, .weight = true, .addend = addend, .accumulate = accumulate});
  auto apart = RunBackward(problem, {.input = true, .addend = addend});
  const auto weight = RunBackward(problem, {.weight = true, .accumulate = accumulate});
  std::copy(weight.begin() + 1, weight.end(), apart.begin() + 1);
  EXPECT_TRUE(HaveTheSameBits(once, apart));
}

using Parameter = std::tuple<DType, LayerNormShape>;
std::string NameOfProblem(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [type, shape] = info.param;
  return absl::StrCat(NameOf(type), shape.centers ? "_" : "_rms_", shape.rows, "x", shape.features);
}

class CudaLayerNorm : public ::testing::TestWithParam<Parameter> {
 protected:
  Problem problem_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(CudaLayerNorm, ForwardMatchesReference) {
  ExpectForwardMatches(problem_, ToDouble(problem_.x), RunForward(problem_));
}

TEST_P(CudaLayerNorm, ForwardOfASumMatchesReference) { ExpectForwardOfASumMatches(problem_); }

TEST_P(CudaLayerNorm, ForwardOfASumHasTheBitsOfAddAndForward) {
  EXPECT_TRUE(RunForward(problem_, Add::kWithin) == RunForward(problem_, Add::kBefore));
}

TEST_P(CudaLayerNorm, BackwardInputMatchesReference) { ExpectBackwardInputMatches(problem_, {}); }

TEST_P(CudaLayerNorm, BackwardInputAddsTheAddend) {
  ExpectBackwardInputMatches(problem_, {.addend = true});
}

TEST_P(CudaLayerNorm, BackwardInputMayOverwriteItsOperand) {
  ExpectBackwardInputMatches(problem_, {.in_place = true});
}

// The shapes where the work is laid out in another way: a warp or a block to a row, the row kept or
// read again, vectors or single elements.
INSTANTIATE_TEST_SUITE_P(
    Rows, CudaLayerNorm,
    ::testing::Combine(
        ::testing::ValuesIn(kActivationTypes),
        ::testing::Values(LayerNormShape{1, 1}, LayerNormShape{3, 1}, LayerNormShape{5, 7, 0.5F},
                          LayerNormShape{6, 64}, LayerNormShape{17, 33}, LayerNormShape{3, 256},
                          LayerNormShape{2, 257}, LayerNormShape{5, 768}, LayerNormShape{2, 1024},
                          LayerNormShape{2, 1032}, LayerNormShape{1, 4099}, LayerNormShape{2, 8200},
                          LayerNormShape{1, 16384}, LayerNormShape{2, 16400}, Rms(3, 1), Rms(5, 7),
                          Rms(2, 257), Rms(5, 768), Rms(1, 16400))),
    NameOfProblem);
INSTANTIATE_TEST_SUITE_P(VeryLongRows, CudaLayerNorm,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::Values(LayerNormShape{1, 1 << 20},
                                                              LayerNormShape{1, 1000003})),
                         NameOfProblem);

class CudaLayerNormWeight : public CudaLayerNorm {};

TEST_P(CudaLayerNormWeight, BackwardWeightMatchesReference) {
  ExpectBackwardWeightMatches(problem_, /*accumulate=*/false);
}

TEST_P(CudaLayerNormWeight, BackwardWeightAddsToWhatIsThere) {
  ExpectBackwardWeightMatches(problem_, /*accumulate=*/true);
}

TEST_P(CudaLayerNormWeight, HasTheSameBitsAtOnceWithTheInputAndApart) {
  ExpectTheSameBitsAtOnceAndApart(problem_, /*addend=*/false);
  ExpectTheSameBitsAtOnceAndApart(problem_, /*addend=*/true);
}

// Also of more rows than one block of them; blocks of several teams and of one; rows of which a
// thread has 8 elements, or 16, or which a block cannot hold.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLayerNormWeight,
    ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                       ::testing::Values(LayerNormShape{1, 1}, LayerNormShape{3, 1},
                                         LayerNormShape{17, 37}, LayerNormShape{9, 264},
                                         LayerNormShape{70, 256}, LayerNormShape{301, 129},
                                         LayerNormShape{1000, 8}, LayerNormShape{9, 2304},
                                         LayerNormShape{9, 4097}, LayerNormShape{9, 4104},
                                         LayerNormShape{2, 8200}, Rms(5, 7), Rms(9, 2304),
                                         Rms(301, 129))),
    NameOfProblem);

class CudaLayerNormUnaligned : public CudaLayerNorm {};

TEST_P(CudaLayerNormUnaligned, MatchesReference) {
  problem_.offset = 1;
  ExpectForwardMatches(problem_, ToDouble(problem_.x), RunForward(problem_));
  ExpectForwardOfASumMatches(problem_);
  EXPECT_TRUE(RunForward(problem_, Add::kWithin) == RunForward(problem_, Add::kBefore));
  ExpectBackwardInputMatches(problem_, {.addend = true});
  ExpectBackwardWeightMatches(problem_, /*accumulate=*/true);
  ExpectTheSameBitsAtOnceAndApart(problem_, /*addend=*/true);
}

// Shapes that vectors would fit.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaLayerNormUnaligned,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::Values(LayerNormShape{3, 64},
                                                              LayerNormShape{2, 1024},
                                                              LayerNormShape{1, 8192})),
                         NameOfProblem);

// mean(x^2) - mean(x)^2 would lose all digits of the variance.
TEST(CudaLayerNormForward, KeepsTheVarianceOfRowsFarFromZero) {
  const Problem problem(DType::kFloat32, {.rows = 5, .features = 100}, /*mean=*/4096.0F, 1.0F);
  ExpectForwardMatches(problem, ToDouble(problem.x), RunForward(problem));
}

TEST(CudaLayerNormForward, RowsOfOneValueGiveBeta) {
  for (const DType type : kActivationTypes) {
    const Problem problem(type, {.rows = 1, .features = 72}, /*mean=*/1.0F, /*deviation=*/0.0F);
    EXPECT_EQ(RunForward(problem).y, ToDouble(problem.beta)) << NameOf(type);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::layer_norm_test
