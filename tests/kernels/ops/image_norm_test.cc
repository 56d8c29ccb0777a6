#include "kernels/ops/image_norm.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/elementwise.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::image_norm_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

std::vector<float> AsFloats(const Vector& values) { return {values.begin(), values.end()}; }

// The statistics are the exact ones, rounded: backward is tested on its own operands.
class ImageNorm : public OpTest<ImageNormShape> {
 protected:
  Shape all() const { return {shape().samples, shape().channels, shape().area, 1}; }
  Shape channels() const { return {shape().channels}; }
  Shape sets() const { return {shape().sets()}; }
  ActivationShape Relu() const {
    return {shape().samples, shape().channels * shape().area, Activation::kRelu};
  }

  // Returns mean, variance and y, and y of Apply with these.
  std::array<Vector, 4> Forward() const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      ImageNormTensors tensors = Operands(bench);
      tensors.mean = bench.ResultOf(DType::kFloat32, sets());
      tensors.variance = bench.ResultOf(DType::kFloat32, sets());
      tensors.y = bench.Result(bench.Images(all()));
      ImageNormTensors same = tensors;
      same.y = bench.Result(bench.Images(all()));
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Forward(stream, tensors, {}, workspace));
        return op.Apply(stream, same, {});
      });
      return std::array{tensors.mean, tensors.variance, tensors.y, same.y};
    });
  }
  // Returns dx, dgamma and dbeta, the latter added to `start` if it is not 0; together or one after
  // the other.
  std::array<Vector, 3> Backward(float start, bool together) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      ImageNormTensors tensors = Operands(bench);
      tensors.mean = bench.Floats(sets(), mean_);
      tensors.variance = bench.Floats(sets(), variance_);
      const Tensor dy = bench.Operand(bench.Images(all()), AsFloats(dy_));
      const Tensor dx = start != 0.0F ? bench.Result(bench.Images(all())) : dy;
      const Tensor dgamma = From(start, channels(), bench), dbeta = From(start, channels(), bench);
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      const bool adds = start != 0.0F;
      bench.Run([&](Stream& stream) -> absl::Status {
        if (together) {
          return op.Backward(stream, dy, tensors, {}, dx, dgamma, dbeta, adds, workspace);
        }
        RETURN_IF_ERROR(op.BackwardWeight(stream, dy, tensors, {}, dgamma, dbeta, adds, workspace));
        return op.BackwardInput(stream, dy, tensors, {}, dx, workspace);
      });
      return std::array{dx, dgamma, dbeta};
    });
  }
  std::array<Vector, 2> Collect(float start) const {
    return Results([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      const Tensor mean = bench.Floats(sets(), mean_), variance = bench.Floats(sets(), variance_);
      const Tensor means = From(start, sets(), bench), variances = From(start, sets(), bench);
      bench.Run([&](Stream& stream) {
        return op.Collect(stream, mean, variance, means, variances, start != 0.0F);
      });
      return std::array{means, variances};
    });
  }

  size_t SetOf(size_t i) const {
    return static_cast<size_t>(reference::ImageNormSetOf(shape(), static_cast<int64_t>(i)));
  }
  size_t ChannelOf(size_t i) const {
    return static_cast<size_t>(reference::ImageNormChannelOf(shape(), static_cast<int64_t>(i)));
  }

  const Vector x_ = Operand(all().elements(), 1, /*scale=*/2.0F, /*shift=*/1.0F);
  Vector gamma_ = Operand(shape().channels, 2), beta_ = Operand(shape().channels, 3);
  const Vector dy_ = Operand(all().elements(), 4);
  const reference::ImageNormOutput exact_ = reference::ImageNormForward(shape(), x_, gamma_, beta_);
  const std::vector<float> mean_ = AsFloats(exact_.mean), variance_ = AsFloats(exact_.variance);
  const int64_t n_ = shape().set_size();

  ImageNormTensors Operands(OpBench& bench) const {
    return {.x = bench.Operand(bench.Images(all()), AsFloats(x_)),
            .gamma = bench.Operand(channels(), AsFloats(gamma_)),
            .beta = bench.Operand(channels(), AsFloats(beta_))};
  }
  static Tensor From(float start, const Shape& shape, OpBench& bench) {
    return bench.Sums(shape, std::vector<float>(static_cast<size_t>(shape.elements()), start),
                      start != 0.0F);
  }

 private:
  Vector Operand(int64_t elements, uint64_t stream, float scale = 1.0F, float shift = 0.0F) const {
    std::vector<float> values = RandomNormal(elements, stream);
    for (float& value : values) value = scale * value + shift;
    return ToDouble(Rounded(values));
  }
};

// Bounds forward, step by step: the error of the mean is that of a sum of n; that of x - mean is
// this and a rounding; that of the variance is their effect on squares, and the error of their sum.
//
// CUDA devices merge both from parts, mean += (m - mean) f and squares += q + (m - mean)^2 w, and
// then from threads and blocks. A mean, also one of a part, is off by at most Gamma(n + 24) of the
// mean magnitude there: a merge adds 3 roundings of its weight's share and one of the sum so far.
// The terms of the exact sum of squares are computed with such means, which in all changes it by at
// most 2 d e + e^2, d^2 being the variance and e^2 the mean of w times the square of the means'
// errors. For n numbers that are merged one after the other these are at most 2 (1 + ln n), for
// each of the two further levels 4, times the square of Gamma(n + 24) of the root of the mean
// square of x.
TEST_P(ImageNorm, ForwardMatchesReference) {
  const double u = Gamma(1);
  Vector mean_magnitude(mean_.size()), mean_square(mean_.size()), mean_bound(mean_.size());
  Vector variance_bound(mean_.size()), y_bound(x_.size());
  const auto n = static_cast<double>(n_);
  for (size_t i = 0; i < x_.size(); ++i) {
    mean_magnitude[SetOf(i)] += std::fabs(x_[i]) / n;
    mean_square[SetOf(i)] += x_[i] * x_[i] / n;
  }
  const bool is_merged = !backend().is_cpu;
  for (size_t s = 0; s < mean_bound.size(); ++s) {
    mean_bound[s] = Gamma(n_ + (is_merged ? 24 : 1)) * mean_magnitude[s];
  }
  const auto deviation = [&](size_t i) { return std::fabs(x_[i] - exact_.mean[SetOf(i)]); };
  const auto deviation_bound = [&](size_t i) {
    return mean_bound[SetOf(i)] * (1.0 + u) + u * deviation(i);
  };
  const auto squares_bound = [&](double d, double e, int64_t roundings) {
    return 2.0 * d * e + e * e + Gamma(roundings) * (d + e) * (d + e);
  };
  if (is_merged) {
    const double growth = std::sqrt(2.0 * (1.0 + std::log(n)) + 8.0);
    for (size_t s = 0; s < variance_bound.size(); ++s) {
      variance_bound[s] =
          squares_bound(std::sqrt(exact_.variance[s]),
                        growth * Gamma(n_ + 24) * std::sqrt(mean_square[s]), n_ + 24);
    }
  } else {
    for (size_t i = 0; i < x_.size(); ++i) {
      variance_bound[SetOf(i)] += squares_bound(deviation(i), deviation_bound(i), n_ + 3) / n;
    }
  }
  for (size_t i = 0; i < x_.size(); ++i) {
    const size_t s = SetOf(i);
    const double of_root = exact_.variance[s] + double{shape().epsilon};
    ASSERT_LT(variance_bound[s], 0.1 * of_root) << "the bound would not hold";
    const double rstd = 1.0 / std::sqrt(of_root);
    const double rstd_bound = rstd * (0.6 * variance_bound[s] / of_root + Gamma(8));
    const double g = std::fabs(gamma_[ChannelOf(i)]);
    const double scaled = g * deviation(i) * rstd;
    y_bound[i] = g * (deviation_bound(i) * (rstd + rstd_bound) + deviation(i) * rstd_bound) +
                 Gamma(4) * (2.0 * scaled + std::fabs(beta_[ChannelOf(i)]));
  }
  const auto [actual_mean, actual_variance, y, same_y] = Forward();
  EXPECT_THAT(actual_mean, CloseTo(exact_.mean, mean_bound));
  EXPECT_THAT(actual_variance, CloseTo(exact_.variance, variance_bound));
  EXPECT_THAT(y, Near(exact_.y, y_bound));
  EXPECT_THAT(same_y, HasTheBitsOf(y));
}

// Every path from an operand to the result undergoes at most n + 24 roundings.
TEST_P(ImageNorm, BackwardInputMatchesReference) {
  const Vector mean = ToDouble(mean_), variance = ToDouble(variance_);
  Vector sum(mean.size()), sum_xhat(mean.size()), bounds(x_.size());
  const auto rstd = [&](size_t i) {
    return 1.0 / std::sqrt(variance[SetOf(i)] + double{shape().epsilon});
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
      Backward(0.0F, /*together=*/false)[0],
      Near(reference::ImageNormBackwardInput(shape(), dy_, x_, gamma_, mean, variance), bounds));
}

TEST_P(ImageNorm, BackwardWeightMatchesReferenceAndAddsToWhatThereIs) {
  const Vector mean = ToDouble(mean_), variance = ToDouble(variance_);
  const auto exact = reference::ImageNormBackwardWeight(shape(), dy_, x_, mean, variance);
  const int64_t terms = all().elements() / shape().channels;
  for (const float start : {0.0F, 2.0F}) {
    Vector dgamma = exact.dgamma, dbeta = exact.dbeta;
    Vector dgamma_bounds(dgamma.size()), dbeta_bounds(dbeta.size());
    for (size_t i = 0; i < x_.size(); ++i) {
      const size_t s = SetOf(i), c = ChannelOf(i);
      const double rstd = 1.0 / std::sqrt(variance[s] + double{shape().epsilon});
      dgamma_bounds[c] += Gamma(terms + 16) * std::fabs(dy_[i] * (x_[i] - mean[s])) * rstd;
      dbeta_bounds[c] += Gamma(terms + 1) * std::fabs(dy_[i]);
    }
    for (size_t c = 0; c < dgamma.size(); ++c) {
      dgamma[c] += double{start};
      dbeta[c] += double{start};
      dgamma_bounds[c] += Gamma(terms + 16) * double{start};
      dbeta_bounds[c] += Gamma(terms + 1) * double{start};
    }
    const auto actual = Backward(start, /*together=*/false);
    EXPECT_THAT(actual[1], CloseTo(dgamma, dgamma_bounds));
    EXPECT_THAT(actual[2], CloseTo(dbeta, dbeta_bounds));
  }
}

TEST_P(ImageNorm, BackwardTogetherHasTheBitsOfBackwardApart) {
  for (const float start : {0.0F, 2.0F}) {
    const auto apart = Backward(start, false), together = Backward(start, true);
    for (size_t i = 0; i < apart.size(); ++i) EXPECT_THAT(together[i], HasTheBitsOf(apart[i]));
  }
}

TEST_P(ImageNorm, CollectsTheMeanAndTheUnbiasedVariance) {
  if (n_ == 1) return;  // there is none
  for (const float start : {0.0F, 2.0F}) {
    const auto sums = Collect(start);
    Vector mean, mean_bounds, variance, variance_bounds;
    for (size_t s = 0; s < mean_.size(); ++s) {
      const double m = double{mean_[s]}, v = double{variance_[s]};
      const double unbiased = v * static_cast<double>(n_) / static_cast<double>(n_ - 1);
      mean.push_back(m + double{start});
      mean_bounds.push_back(Gamma(1) * (std::fabs(m) + double{start}));
      variance.push_back(unbiased + double{start});
      variance_bounds.push_back(Gamma(6) * (unbiased + double{start}));
    }
    EXPECT_THAT(sums[0], CloseTo(mean, mean_bounds));
    EXPECT_THAT(sums[1], CloseTo(variance, variance_bounds));
  }
}

TEST_P(ImageNorm, BackwardAndCollectHasTheBitsOfBoth) {
  if (n_ == 1) return;
  for (const float start : {0.0F, 2.0F}) {
    const auto apart = Backward(start, /*together=*/true);
    const auto collected = Collect(start);
    for (const bool has_dx : {false, true}) {
      const auto results = ResultsAtAnyAddress([&](OpBench& bench) {
        ImageNormOp& op = bench.Create(shape());
        ImageNormTensors tensors = Operands(bench);
        tensors.mean = bench.Floats(sets(), mean_);
        tensors.variance = bench.Floats(sets(), variance_);
        const Tensor dy = bench.Operand(bench.Images(all()), AsFloats(dy_));
        const Tensor dx = has_dx ? bench.Result(bench.Images(all())) : Tensor{};
        const Tensor dgamma = From(start, channels(), bench),
                     dbeta = From(start, channels(), bench);
        const ImageNormAverages to = {From(start, sets(), bench), From(start, sets(), bench)};
        std::byte* const workspace = bench.Workspace(op.workspace_bytes());
        bench.Run([&](Stream& stream) {
          return op.BackwardAndCollect(stream, dy, tensors, {}, dx, dgamma, dbeta, to,
                                       start != 0.0F, workspace);
        });
        return std::array{dgamma, dbeta, to.mean, to.variance, has_dx ? dx : dgamma};
      });
      EXPECT_THAT(results[0], HasTheBitsOf(apart[1]));
      EXPECT_THAT(results[1], HasTheBitsOf(apart[2]));
      EXPECT_THAT(results[2], HasTheBitsOf(collected[0]));
      EXPECT_THAT(results[3], HasTheBitsOf(collected[1]));
      if (has_dx) {
        EXPECT_THAT(results[4], HasTheBitsOf(apart[0]));
      }
    }
  }
}

// The cases include y in the memory of x, or of the addend.
TEST_P(ImageNorm, ForwardWithATailHasTheBitsOfItsOperations) {
  struct Steps {
    bool adds, has_relu;
  };
  for (const Steps steps : {Steps{false, false}, {false, true}, {true, false}, {true, true}}) {
    const auto [y, over_x, over_addend] = ResultsAtAnyAddress([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      ActivationOp& relu = bench.Create(Relu());
      ImageNormTensors apart = Operands(bench), applied = Operands(bench);
      apart.mean = applied.mean = bench.ResultOf(DType::kFloat32, sets());
      apart.variance = applied.variance = bench.ResultOf(DType::kFloat32, sets());
      apart.y = bench.Result(bench.Images(all()));
      ImageNormTensors in_place = apart;
      in_place.y = apart.x;
      const ImageNormTail tail = {
          .addend = steps.adds ? bench.Operand(bench.Images(all()), AsFloats(dy_)) : Tensor{},
          .has_relu = steps.has_relu};
      applied.y = steps.adds ? tail.addend : bench.Result(bench.Images(all()));
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Forward(stream, apart, {}, workspace));
        if (steps.has_relu) {
          RETURN_IF_ERROR(relu.Forward(stream, apart.y, tail.addend, apart.y));
        } else if (steps.adds) {
          RETURN_IF_ERROR(bench.ops().elementwise().Add(stream, apart.y, tail.addend, apart.y));
        }
        RETURN_IF_ERROR(op.Forward(stream, in_place, tail, workspace));
        return op.Apply(stream, applied, tail);
      });
      return std::array{apart.y, in_place.y, applied.y};
    });
    EXPECT_THAT(over_x, HasTheBitsOf(y)) << steps.adds << steps.has_relu;
    EXPECT_THAT(over_addend, HasTheBitsOf(y)) << steps.adds << steps.has_relu;
  }
}

// The ReLU's derivative is computed from its y or from x, and the results are written to various
// places. In one channel all y are 0, in another they are the smallest positive number, or too
// small for it.
TEST_P(ImageNorm, BackwardThroughAReluHasTheBitsOfItsOperations) {
  gamma_.back() = type() == DType::kFloat32 ? 0x1p-149 : 0x1p-133;
  gamma_[0] = beta_[0] = beta_.back() = 0.0;
  enum class Over : uint8_t { kNothing, kDx, kDz };  // what overwrites dy
  struct Way {
    bool by_y, writes_dz, together;
    Over over = Over::kNothing;
  };
  for (const Way& way : {Way{false, false, true, Over::kDx}, Way{false, true, false},
                         Way{true, true, true, Over::kDz}, Way{true, true, false, Over::kDz},
                         Way{true, false, true, Over::kDx}}) {
    const auto results = ResultsAtAnyAddress([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      ActivationOp& relu = bench.Create(Relu());
      const Shape images = bench.Images(all());
      ImageNormTensors tensors = Operands(bench);
      tensors.mean = bench.Floats(sets(), mean_);
      tensors.variance = bench.Floats(sets(), variance_);
      tensors.y = bench.Result(images);
      const Tensor dy = bench.Operand(images, AsFloats(dy_));
      const Tensor dz_apart = bench.Result(images), dx_apart = bench.Result(images);
      const Tensor dz = way.over == Over::kDz ? dy : bench.Result(images);
      const Tensor dx = way.over == Over::kDx ? dy : bench.Result(images);
      std::array<Tensor, 4> sums;  // dgamma and dbeta of both
      for (Tensor& sum : sums) sum = bench.ResultOf(DType::kFloat32, channels());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Apply(stream, tensors, {.has_relu = true}));
        RETURN_IF_ERROR(relu.BackwardInput(stream, dy, tensors.y, dz_apart));
        RETURN_IF_ERROR(op.Backward(stream, dz_apart, tensors, {}, dx_apart, sums[0], sums[1],
                                    false, workspace));
        const ImageNormTailGradient tail = {.has_relu = true,
                                            .y = way.by_y ? tensors.y : Tensor{},
                                            .dz = way.writes_dz ? dz : Tensor{}};
        if (way.together) {
          return op.Backward(stream, dy, tensors, tail, dx, sums[2], sums[3], false, workspace);
        }
        RETURN_IF_ERROR(op.BackwardInput(stream, dy, tensors, tail, dx, workspace));
        return op.BackwardWeight(stream, dy, tensors, tail, sums[2], sums[3], false, workspace);
      });
      return std::array{dx_apart, dx,      dz_apart, way.writes_dz ? dz : dz_apart,
                        sums[0],  sums[2], sums[1],  sums[3]};
    });
    for (size_t i = 0; i < results.size(); i += 2) {
      EXPECT_THAT(results[i + 1], HasTheBitsOf(results[i]))
          << "result " << i << ", " << way.by_y << way.writes_dz << way.together;
    }
  }
}

// The addend may be in the memory of dz.
TEST_P(ImageNorm, BackwardAddsToDyWithTheBitsOfASumBefore) {
  for (const bool by_y : {false, true}) {
    for (const bool in_place : {false, true}) {
      const auto results = ResultsAtAnyAddress([&](OpBench& bench) {
        ImageNormOp& op = bench.Create(shape());
        EXPECT_EQ(op.adds_to_dy(), !backend().is_cpu);
        const Shape images = bench.Images(all());
        ImageNormTensors tensors = Operands(bench);
        tensors.mean = bench.Floats(sets(), mean_);
        tensors.variance = bench.Floats(sets(), variance_);
        tensors.y = bench.Result(images);
        const Tensor dy = bench.Operand(images, AsFloats(dy_));
        const Tensor addend = bench.Operand(images, AsFloats(x_));
        const Tensor sum = bench.Result(images), dz_apart = bench.Result(images);
        const Tensor dx_apart = bench.Result(images), dx = bench.Result(images);
        const Tensor dz = in_place ? addend : bench.Result(images);
        std::array<Tensor, 4> sums;  // dgamma and dbeta of both
        for (Tensor& each : sums) each = bench.ResultOf(DType::kFloat32, channels());
        std::byte* const workspace = bench.Workspace(op.workspace_bytes());
        bench.Run([&](Stream& stream) -> absl::Status {
          RETURN_IF_ERROR(op.Apply(stream, tensors, {.has_relu = true}));
          RETURN_IF_ERROR(bench.ops().elementwise().Add(stream, dy, addend, sum));
          ImageNormTailGradient tail = {
              .has_relu = true, .y = by_y ? tensors.y : Tensor{}, .dz = dz_apart};
          RETURN_IF_ERROR(op.Backward(stream, sum, tensors, tail, dx_apart, sums[0], sums[1], false,
                                      workspace));
          tail.dz = dz;
          if (op.adds_to_dy()) tail.dy_addend = addend;
          return op.Backward(stream, op.adds_to_dy() ? dy : sum, tensors, tail, dx, sums[2],
                             sums[3], false, workspace);
        });
        return std::array{dx_apart, dx, dz_apart, dz, sums[0], sums[2], sums[1], sums[3]};
      });
      for (size_t i = 0; i < results.size(); i += 2) {
        EXPECT_THAT(results[i + 1], HasTheBitsOf(results[i]))
            << "result " << i << ", " << by_y << in_place;
      }
    }
  }
}

TEST_P(ImageNorm, TheNormOfAnAddendHasTheBitsOfApplyingItBefore) {
  for (const bool has_relu : {false, true}) {
    const auto [y, fused, mean, mean_alone] = ResultsAtAnyAddress([&](OpBench& bench) {
      ImageNormOp& op = bench.Create(shape());
      ImageNormTensors main = Operands(bench), other = Operands(bench), alone = Operands(bench);
      other.x = bench.Operand(bench.Images(all()), AsFloats(dy_));
      other.gamma = main.beta;
      for (ImageNormTensors* const each : {&main, &other, &alone}) {
        each->mean = bench.ResultOf(DType::kFloat32, sets());
        each->variance = bench.ResultOf(DType::kFloat32, sets());
        each->y = bench.Result(bench.Images(all()));
      }
      ImageNormTensors in_place = main;
      in_place.y = bench.Result(bench.Images(all()));
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Forward(stream, other, {}, workspace));
        RETURN_IF_ERROR(op.Forward(stream, main, {other.y, has_relu}, workspace));
        if (!op.norms_addend()) {
          RETURN_IF_ERROR(op.Forward(stream, alone, {}, workspace));
          return op.Apply(stream, in_place, {other.y, has_relu});
        }
        RETURN_IF_ERROR(op.Statistics(stream, alone, workspace));
        return op.Apply(stream, in_place,
                        {.addend = other.x,
                         .has_relu = has_relu,
                         .addend_norm = {.gamma = other.gamma,
                                         .beta = other.beta,
                                         .mean = other.mean,
                                         .variance = other.variance,
                                         .epsilon = shape().epsilon}});
      });
      return std::array{main.y, in_place.y, main.mean, alone.mean};
    });
    EXPECT_THAT(fused, HasTheBitsOf(y)) << has_relu;
    EXPECT_THAT(mean_alone, HasTheBitsOf(mean));
  }
}

std::string NameOf(const ImageNormShape& s) {
  return absl::StrCat(s.samples, "x", s.channels, "x", s.area, "_groups", s.groups);
}

// With channels last: columns that are not vectors, a few columns, and more than one piece of a row
// has; one block of rows and several, the last of which is short; sets of one row's columns.
INSTANTIATE_OP_TEST(ImageNorm, NameOf, ImageNormShape{2, 1, 1}, ImageNormShape{3, 5, 7},
                    ImageNormShape{8, 20, 64, 0, 1e-3F}, ImageNormShape{2, 6, 5, 1},
                    ImageNormShape{3, 6, 9, 3}, ImageNormShape{2, 4, 33, 4, 1e-3F},
                    ImageNormShape{5, 12, 45, 3}, ImageNormShape{3, 1, 700},
                    ImageNormShape{2, 3, 613}, ImageNormShape{4, 64, 75}, ImageNormShape{3, 72, 41},
                    ImageNormShape{1, 264, 33}, ImageNormShape{2, 64, 150, 32},
                    ImageNormShape{2, 64, 1, 2});

TEST(ImageNormRefusal, IsAnInvalidArgument) {
  ExpectInvalid<ImageNormShape>({{.samples = 0},
                                 {.channels = -1},
                                 {.area = 0},
                                 {.channels = 6, .groups = 4},
                                 {.groups = -1},
                                 {.epsilon = 0.0F}});
}

}  // namespace
}  // namespace stagecoach::kernels::image_norm_test
