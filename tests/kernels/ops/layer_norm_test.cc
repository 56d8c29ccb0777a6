#include "kernels/ops/layer_norm.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::layer_norm_test {
namespace {

using reference::RowStatistics;
using reference::Vector;
using ::stagecoach::testing::Addresses;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

// Names: R rows and C features, indexed by r and c.

constexpr LayerNormShape Rms(int64_t rows, int64_t features) {
  return {.rows = rows, .features = features, .epsilon = 0.5F, .centers = false};
}

// How the addend is added to x: not at all, by ElementwiseOps, or by the layer norm itself, which
// may then put y in its place.
enum class Add { kNo, kBefore, kWithin, kUnderY };

class LayerNorm : public OpTest<LayerNormShape> {
 protected:
  LayerNorm() { Fill(/*mean=*/0.5F, /*deviation=*/2.0F); }

  // Fills x with normal numbers around `mean` with the given deviation. The statistics are the
  // exact ones, rounded.
  void Fill(float mean, float deviation) {
    std::vector<float> x = RandomNormal(R() * C(), 1);
    for (float& value : x) value = mean + deviation * value;
    x_ = Rounded(x);
    const auto exact =
        reference::LayerNormForward(shape(), ToDouble(x_), ToDouble(gamma_), ToDouble(beta_));
    statistics_.assign(exact.statistics.begin(), exact.statistics.end());
  }

  int64_t R() const { return shape().rows; }
  int64_t C() const { return shape().features; }
  bool centers() const { return shape().centers; }
  Shape matrix() const { return {R(), C()}; }
  Shape statistics_shape() const { return centers() ? Shape{R(), 2} : Shape{R()}; }
  Vector RowOf(const Vector& values, size_t r) const {
    const auto columns = static_cast<size_t>(C());
    const auto row = absl::MakeConstSpan(values).subspan(r * columns, columns);
    return {row.begin(), row.end()};
  }

  // Returns statistics, y, and x afterwards.
  std::array<Vector, 3> Forward(Add add) const {
    return Results(
        [&](OpBench& bench) {
          LayerNormOp& op = bench.Create(shape());
          const Tensor x = bench.Operand(matrix(), x_), gamma = bench.Operand({C()}, gamma_);
          const Tensor beta = centers() ? bench.Operand({C()}, beta_) : Tensor{};
          const Tensor addend = bench.Operand(matrix(), addend_);
          const Tensor y = add == Add::kUnderY ? addend : bench.Result(matrix());
          const bool adds = add == Add::kWithin || add == Add::kUnderY;
          const Tensor statistics = bench.ResultOf(DType::kFloat32, statistics_shape());
          bench.Run([&](Stream& stream) -> absl::Status {
            if (add == Add::kBefore) {
              RETURN_IF_ERROR(bench.ops().elementwise().Add(stream, x, addend, x));
            }
            return op.Forward(stream, x, gamma, beta, adds ? addend : Tensor{}, statistics, y);
          });
          return std::array{statistics, y, x};
        },
        addresses_);
  }

  // Bounds of the statistics of one row: absolute for the mean, relative for rstd. The mean is a
  // sum of C terms and a division. A variance around a mean that is off by d is too large by d^2;
  // its own sum also has 4 roundings of each term. RMSNorm's mean is exactly 0.
  struct StatisticsBound {
    double mean, relative_rstd;
  };
  StatisticsBound BoundOf(const Vector& row, double rstd) const {
    const int64_t roundings = backend().row_sum(C()).roundings;
    const auto elementary = static_cast<int64_t>(PrecisionOf(DType::kFloat32).elementary);
    double sum_abs = 0;
    for (const double value : row) sum_abs += std::fabs(value);
    const double mean =
        centers() ? Gamma(roundings + elementary) * sum_abs / static_cast<double>(C()) : 0.0;
    return {mean, Gamma(roundings + 4 + 2 * elementary) + mean * rstd * mean * rstd};
  }

  // `x` is the normalized input.
  void ExpectForward(const Vector& x, const Vector& statistics, const Vector& y) const {
    const Vector gamma = ToDouble(gamma_);
    const auto expected = reference::LayerNormForward(shape(), x, gamma, ToDouble(beta_));
    Vector statistics_bound, y_bound;
    for (size_t r = 0; r < static_cast<size_t>(R()); ++r) {
      const auto [mean, rstd] = RowStatistics(shape(), expected.statistics, r);
      const Vector row = RowOf(x, r), expected_y = RowOf(expected.y, r);
      const StatisticsBound bound = BoundOf(row, rstd);
      if (centers()) statistics_bound.push_back(bound.mean);
      statistics_bound.push_back(bound.relative_rstd * rstd);
      for (size_t c = 0; c < row.size(); ++c) {
        const double shift = bound.mean * rstd * std::fabs(gamma[c]);
        const double scaled = std::fabs((row[c] - mean) * rstd * gamma[c]);
        y_bound.push_back(shift + (scaled + shift) * (bound.relative_rstd + Gamma(4)) +
                          Gamma(1) * std::fabs(expected_y[c]));
      }
    }
    EXPECT_THAT(statistics, CloseTo(expected.statistics, statistics_bound));
    EXPECT_THAT(y, Near(expected.y, y_bound));
  }
  void ExpectForward() const {
    const auto [statistics, y, x] = Forward(Add::kNo);
    ExpectForward(ToDouble(x_), statistics, y);
  }

  void ExpectForwardOfASum() const {
    const auto [statistics, y, x] = Forward(Add::kWithin);
    std::vector<float> sum;
    for (size_t i = 0; i < x_.size(); ++i) sum.push_back(x_[i] + addend_[i]);
    EXPECT_TRUE(x == ToDouble(Rounded(sum))) << "the sum must be exact but for one rounding";
    ExpectForward(x, statistics, y);
  }
  void ExpectTheBitsOfAddAndForward() const {
    const auto [statistics_after, y_after, sum] = Forward(Add::kBefore);
    for (const Add add : {Add::kWithin, Add::kUnderY}) {
      const auto [statistics, y, x] = Forward(add);
      EXPECT_THAT(x, HasTheBitsOf(sum));
      EXPECT_THAT(statistics, HasTheBitsOf(statistics_after));
      EXPECT_THAT(y, HasTheBitsOf(y_after));
    }
  }

  Vector BackwardInput(bool adds, bool in_place = false) const {
    return Results(
        [&](OpBench& bench) {
          LayerNormOp& op = bench.Create(shape());
          const Tensor dy = bench.Operand(matrix(), dy_), x = bench.Operand(matrix(), x_);
          const Tensor gamma = bench.Operand({C()}, gamma_);
          const Tensor addend = adds ? bench.Operand(matrix(), addend_) : Tensor{};
          const Tensor statistics = bench.Floats(statistics_shape(), statistics_);
          const Tensor dx = in_place ? dy : bench.Result(matrix());
          bench.Run([&](Stream& stream) {
            return op.BackwardInput(stream, dy, x, gamma, statistics, addend, dx);
          });
          return dx;
        },
        addresses_);
  }
  void ExpectBackwardInput(bool adds) const { ExpectDx(BackwardInput(adds), adds); }

  // Returns dx, dgamma and dbeta by two calls or by the one for both. With `adds` there is an
  // addend to dx, and the others are accumulated.
  std::array<Vector, 3> Backward(bool adds, bool at_once) const {
    return Results(
        [&](OpBench& bench) {
          LayerNormOp& op = bench.Create(shape());
          const Tensor dy = bench.Operand(matrix(), dy_), x = bench.Operand(matrix(), x_);
          const Tensor gamma = bench.Operand({C()}, gamma_);
          const Tensor addend = adds ? bench.Operand(matrix(), addend_) : Tensor{};
          const Tensor statistics = bench.Floats(statistics_shape(), statistics_);
          std::byte* const workspace = bench.Workspace(op.workspace_bytes());
          const Tensor dx = bench.Result(matrix()), dgamma = bench.Sums({C()}, dgamma_, adds);
          const Tensor dbeta = centers() ? bench.Sums({C()}, dbeta_, adds) : Tensor{};
          bench.Run([&](Stream& stream) -> absl::Status {
            if (at_once) {
              EXPECT_EQ(op.shares_backward(), !backend().is_cpu);
              return op.Backward(stream, dy, x, gamma, statistics, addend, dx, dgamma, dbeta, adds,
                                 workspace);
            }
            RETURN_IF_ERROR(op.BackwardInput(stream, dy, x, gamma, statistics, addend, dx));
            return op.BackwardWeight(stream, dy, x, statistics, dgamma, dbeta, adds, workspace);
          });
          return std::array{dx, dgamma, dbeta};
        },
        addresses_);
  }

  void ExpectBackwardApartAndAtOnce(bool adds) const {
    const auto [dx, dgamma, dbeta] = Backward(adds, /*at_once=*/false);
    ExpectDx(dx, adds);
    ExpectWeightGradients(dgamma, dbeta, adds);
    const auto at_once = Backward(adds, /*at_once=*/true);
    EXPECT_THAT(at_once[0], HasTheBitsOf(dx));
    EXPECT_THAT(at_once[1], HasTheBitsOf(dgamma));
    EXPECT_THAT(at_once[2], HasTheBitsOf(dbeta));
  }

  void ExpectDx(const Vector& dx, bool adds) const {
    const Vector all_x = ToDouble(x_), gamma = ToDouble(gamma_), all_dy = ToDouble(dy_);
    const Vector statistics = ToDouble(statistics_);
    Vector expected = reference::LayerNormBackwardInput(shape(), all_dy, all_x, gamma, statistics);
    // The longest path, that of mean(g xhat), has 4 roundings of a term, those of the sum, 4 of the
    // division, 6 after it and one of the addend.
    const double relative = Gamma(backend().row_sum(C()).roundings + 15);
    Vector bounds;
    for (size_t r = 0; r < static_cast<size_t>(R()); ++r) {
      const auto [mean, rstd] = RowStatistics(shape(), statistics, r);
      Vector g = RowOf(all_dy, r), xhat = RowOf(all_x, r);
      double mean_g = 0, mean_g_xhat = 0;
      for (size_t c = 0; c < g.size(); ++c) {
        g[c] = std::fabs(g[c] * gamma[c]);
        xhat[c] = std::fabs((xhat[c] - mean) * rstd);
        if (centers()) mean_g += g[c] / static_cast<double>(C());
        mean_g_xhat += g[c] * xhat[c] / static_cast<double>(C());
      }
      for (size_t c = 0; c < g.size(); ++c) {
        double magnitude = rstd * (g[c] + mean_g + xhat[c] * mean_g_xhat);
        if (adds) {
          const double addend = addend_[bounds.size()];
          expected[bounds.size()] += addend;
          magnitude += std::fabs(addend);
        }
        bounds.push_back(relative * magnitude);
      }
    }
    EXPECT_THAT(dx, Near(expected, bounds));
  }

  void ExpectWeightGradients(const Vector& dgamma, const Vector& dbeta, bool adds) const {
    const Vector statistics = ToDouble(statistics_);
    auto expected =
        reference::LayerNormBackwardWeight(shape(), ToDouble(dy_), ToDouble(x_), statistics);
    const auto columns = static_cast<size_t>(C());
    Vector dgamma_bound(columns), dbeta_bound(expected.dbeta.size());
    for (size_t c = 0; c < columns; ++c) {
      double dgamma_abs = 0, dbeta_abs = 0;
      if (adds) {
        expected.dgamma[c] += dgamma_[c];
        if (centers()) expected.dbeta[c] += dbeta_[c];
        dgamma_abs = std::fabs(dgamma_[c]);
        dbeta_abs = std::fabs(dbeta_[c]);
      }
      for (size_t r = 0; r < static_cast<size_t>(R()); ++r) {
        const auto [mean, rstd] = RowStatistics(shape(), statistics, r);
        const double dy = std::fabs(dy_[r * columns + c]);
        dbeta_abs += dy;
        dgamma_abs += dy * std::fabs(x_[r * columns + c] - mean) * rstd;
      }
      // A term of dgamma has 3 roundings; a column has R terms and the previous value.
      dgamma_bound[c] = Gamma(R() + 4) * dgamma_abs;
      if (centers()) dbeta_bound[c] = Gamma(R() + 1) * dbeta_abs;
    }
    EXPECT_THAT(dgamma, CloseTo(expected.dgamma, dgamma_bound));
    EXPECT_THAT(dbeta, CloseTo(expected.dbeta, dbeta_bound));
  }

  Addresses addresses_ = Addresses::kAligned;
  const std::vector<float> gamma_ = Rounded(RandomNormal(C(), 2));
  const std::vector<float> beta_ = Rounded(RandomNormal(C(), 3));
  const std::vector<float> dy_ = Rounded(RandomNormal(R() * C(), 4));
  const std::vector<float> addend_ = Rounded(RandomNormal(R() * C(), 5));
  const std::vector<float> dgamma_ = RandomNormal(C(), 6), dbeta_ = RandomNormal(C(), 7);
  std::vector<float> x_, statistics_;
};

TEST_P(LayerNorm, ForwardMatchesReference) { ExpectForward(); }

TEST_P(LayerNorm, ForwardOfASumMatchesReference) { ExpectForwardOfASum(); }

TEST_P(LayerNorm, ForwardOfASumHasTheBitsOfAddAndForward) { ExpectTheBitsOfAddAndForward(); }

TEST_P(LayerNorm, BackwardInputMatchesReference) { ExpectBackwardInput(/*adds=*/false); }

TEST_P(LayerNorm, BackwardInputAddsTheAddend) { ExpectBackwardInput(/*adds=*/true); }

TEST_P(LayerNorm, BackwardInputMayOverwriteDy) {
  ExpectDx(BackwardInput(/*adds=*/false, /*in_place=*/true), /*adds=*/false);
}

std::string NameOf(const LayerNormShape& shape) {
  return absl::StrCat(shape.centers ? "" : "rms_", shape.rows, "x", shape.features);
}

// On a CPU, several tiles of rows. On a GPU, a warp or a block per row, the row kept or read again,
// vectors or single elements.
INSTANTIATE_OP_TEST(LayerNorm, NameOf, LayerNormShape{1, 1}, LayerNormShape{3, 1},
                    LayerNormShape{5, 7, 0.5F}, LayerNormShape{6, 64}, LayerNormShape{17, 33},
                    LayerNormShape{3, 256}, LayerNormShape{2, 257}, LayerNormShape{5, 768},
                    LayerNormShape{2, 1024}, LayerNormShape{2, 1032}, LayerNormShape{1, 4099},
                    LayerNormShape{2, 8200}, LayerNormShape{1, 16384}, LayerNormShape{2, 16400},
                    LayerNormShape{37, 577}, Rms(3, 1), Rms(5, 7), Rms(37, 577), Rms(2, 257),
                    Rms(5, 768), Rms(1, 16400));

using LayerNormOfVeryLongRows = LayerNorm;

TEST_P(LayerNormOfVeryLongRows, MatchesReference) {
  ExpectForwardOfASum();
  ExpectBackwardInput(/*adds=*/true);
}

INSTANTIATE_OP_TEST(LayerNormOfVeryLongRows, NameOf, LayerNormShape{1, 1 << 18},
                    LayerNormShape{1, 250007});

using LayerNormWeights = LayerNorm;

TEST_P(LayerNormWeights, BackwardMatchesReferenceApartAndAtOnce) {
  ExpectBackwardApartAndAtOnce(/*adds=*/false);
}

TEST_P(LayerNormWeights, BackwardAddsToWhatIsThereApartAndAtOnce) {
  ExpectBackwardApartAndAtOnce(/*adds=*/true);
}

// On a CPU, several tiles of columns. On a GPU, more rows than one block handles; blocks of several
// teams and of one.
INSTANTIATE_OP_TEST(LayerNormWeights, NameOf, LayerNormShape{1, 1}, LayerNormShape{3, 1},
                    LayerNormShape{17, 37}, LayerNormShape{9, 264}, LayerNormShape{70, 256},
                    LayerNormShape{301, 129}, LayerNormShape{200, 8}, LayerNormShape{9, 2304},
                    LayerNormShape{41, 768}, LayerNormShape{13, 4096}, Rms(5, 7), Rms(9, 2304),
                    Rms(301, 129), Rms(41, 768), Rms(13, 4096));

// Rows of which a thread has 16 elements, or which a block cannot hold.
using LayerNormWeightsOfLongRows = LayerNorm;

TEST_P(LayerNormWeightsOfLongRows, BackwardMatchesReferenceApartAndAtOnce) {
  ExpectBackwardApartAndAtOnce(/*adds=*/true);
}

INSTANTIATE_OP_TEST(LayerNormWeightsOfLongRows, NameOf, LayerNormShape{9, 4104}, Rms(9, 4097),
                    Rms(2, 8200));

// Shapes that would suit vectors.
using LayerNormUnaligned = LayerNorm;

TEST_P(LayerNormUnaligned, MatchesReference) {
  addresses_ = Addresses::kUnaligned;
  ExpectForward();
  ExpectForwardOfASum();
  ExpectTheBitsOfAddAndForward();
  ExpectBackwardApartAndAtOnce(/*adds=*/true);
}

INSTANTIATE_OP_TEST(LayerNormUnaligned, NameOf, LayerNormShape{3, 64}, LayerNormShape{2, 1024},
                    LayerNormShape{1, 4104});

// mean(x^2) - mean(x)^2 would lose all digits of the variance.
using LayerNormFarFromZero = LayerNorm;

TEST_P(LayerNormFarFromZero, KeepsTheVariance) {
  Fill(/*mean=*/4096.0F, /*deviation=*/type() == DType::kFloat32 ? 1.0F : 64.0F);
  ExpectForward();
}

INSTANTIATE_OP_TEST(LayerNormFarFromZero, NameOf, LayerNormShape{5, 100});

using LayerNormOfOneValue = LayerNorm;

TEST_P(LayerNormOfOneValue, IsBeta) {
  Fill(/*mean=*/1.0F, /*deviation=*/0.0F);
  const Vector y = Forward(Add::kNo)[1];
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(RowOf(y, r), ToDouble(beta_)) << "row " << r;
}

INSTANTIATE_OP_TEST(LayerNormOfOneValue, NameOf, LayerNormShape{3, 72});

TEST(LayerNormRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<LayerNormShape>({{.rows = 0},
                                 {.rows = -1},
                                 {.features = 0},
                                 {.features = -1},
                                 {.rows = kHuge},
                                 {.features = kHuge},
                                 {.epsilon = 0.0F}});
}

}  // namespace
}  // namespace stagecoach::kernels::layer_norm_test
