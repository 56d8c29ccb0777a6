#include "tests/kernels/ops/attention_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/testing/tolerance.h"

namespace stagecoach::kernels {
namespace {

using reference::AttentionOutput;
using reference::Values;
using reference::Vector;
using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::PrecisionOf;

// Roundings of rotating a number: its table entry, the product, the sum.
constexpr int64_t kTurning = 4;
// Roundings of the scale 1 / sqrt(D) and the product with it.
constexpr int64_t kScaling = 3;
// Roundings of a score's quotient by the cap: of 1 / c, and the product with it.
constexpr int64_t kDividing = 3;
// Relative error of an exponential, in units.
constexpr int64_t kExponential = 4;
// Error of a number that becomes an exponent to the base 2, or was one: a factor that is rounded,
// perhaps twice, and the product with it.
constexpr double kOfBaseTwo = 3;
constexpr size_t kFewestKeysOfATile = 16;

double Unit() { return PrecisionOf(DType::kFloat32).unit_roundoff; }
// Returns what the weight of a key far below the largest, or a product, may lose: all of it.
double Underflow() { return PrecisionOf(DType::kFloat32).underflow; }

// Sums of the absolute values of the terms that a position sees.
struct Magnitudes {
  Magnitudes(const AttentionShape& shape, Values qkv, DType type)
      : B(shape.samples),
        T(shape.positions),
        H(shape.heads),
        G(shape.kv_heads),
        D(shape.head_size),
        scale(shape.scale == 0.0F ? 1.0 / std::sqrt(static_cast<double>(D)) : shape.scale),
        cap(shape.score_cap),
        stored(type == DType::kFloat32 ? 1.0 : 1.0 + PrecisionOf(type).unit_roundoff),
        turned(shape.rotary_base > 0.0F ? stored : 1.0),
        per_term(type == DType::kFloat32 ? 1 : 2),
        x(Turned(shape, qkv)) {}

  // Returns magnitudes of rotated numbers: at most the sum of both of a pair, for any angle.
  static Vector Turned(const AttentionShape& shape, Values qkv) {
    const size_t H = shape.heads, G = shape.kv_heads, D = shape.head_size;
    Vector x;
    for (double value : qkv) x.push_back(std::fabs(value));
    if (shape.rotary_base == 0.0F) return x;
    for (size_t row = 0; row < x.size(); row += (H + 2 * G) * D) {
      for (size_t head = row; head < row + (H + G) * D; head += D) {
        for (size_t i = head; i < head + D / 2; ++i) x[i] = x[i + D / 2] = x[i] + x[i + D / 2];
      }
    }
    return x;
  }

  size_t Query(size_t b, size_t h, size_t t) const { return (b * T + t) * (H + 2 * G) * D + h * D; }
  size_t Key(size_t b, size_t h, size_t u) const { return Query(b, H + h / (H / G), u); }
  size_t Value(size_t b, size_t h, size_t u) const { return Key(b, h, u) + G * D; }
  size_t Output(size_t b, size_t h, size_t t) const { return ((b * T + t) * H + h) * D; }
  size_t Statistic(size_t b, size_t h, size_t t) const { return (b * H + h) * T + t; }

  struct ScoreBound {
    double magnitude, error;
  };
  // Returns the most that the score of a pair, and its error, can be. Both grow with the
  // magnitude of what is summed.
  ScoreBound Score(size_t b, size_t h, size_t t, size_t u) const {
    double sum = 0;
    for (size_t d = 0; d < D; ++d) sum += x[Query(b, h, t) + d] * x[Key(b, h, u) + d];
    const double product = scale * sum;
    const double sums = 1.0 + Gamma(Sum(D) + 2 * kTurning + kScaling);
    const double error = (sums * turned * turned - 1.0) * product;
    if (cap == 0.0) return {product, error};
    const double quotient = product / cap;
    const double capped = cap * std::tanh(quotient);
    const double tanh_error =
        ActivationBound(Activation::kTanh, quotient, QuotientError({product, error}));
    return {capped, (1.0 + Unit()) * cap * tanh_error + Unit() * capped};
  }
  // Returns the error of a score that was divided by the cap.
  double QuotientError(const ScoreBound& score) const {
    return (score.error + Gamma(kDividing) * (score.magnitude + score.error)) / cap;
  }
  // Returns the roundings that each term of a sum undergoes.
  int64_t Sum(size_t terms) const { return per_term * static_cast<int64_t>(terms); }

  size_t B, T, H, G, D;
  double scale, cap;
  // Factors by which an operand of a product may have grown that is rounded to the activation type,
  // if that is not float32: any operand, and a rotated query or key.
  double stored, turned;
  int64_t per_term;  // roundings, of a sum
  Vector x;
};

// Returns the relative error of a factor whose logarithm is off by at most `exponent`, after
// `roundings`.
double RelativeError(double exponent, int64_t roundings) {
  return std::exp(exponent) * (1.0 + Gamma(roundings)) - 1.0;
}

}  // namespace

AttentionForwardBounds BoundsOfAttention(const AttentionShape& shape, Values qkv,
                                         const AttentionOutput& exact, DType type) {
  const Magnitudes m(shape, qkv, type);
  AttentionForwardBounds bounds{Vector(exact.statistics.size()), Vector(exact.y.size())};
  const auto of_query = [&](size_t b, size_t h, size_t t) {
    const size_t first = exact.first[b * m.T + t];
    double largest = 0, score_error = 0;
    for (size_t u = first; u <= t; ++u) {
      const auto score = m.Score(b, h, t, u);
      largest = std::max(largest, score.magnitude);
      score_error = std::max(score_error, score.error);
    }
    // An exponent is the difference of two scores, and weights are adjusted to another largest
    // score once for each tile: a difference, an exponential and a product each.
    const auto tiles =
        static_cast<int64_t>(t / kFewestKeysOfATile - first / kFewestKeysOfATile) + 1;
    const double differences = static_cast<double>(tiles + 1) * 2.0 * Unit() * largest;
    const double sums = RelativeError(score_error + differences,
                                      (kExponential + 1) * (tiles + 1) + m.Sum(m.T) + tiles + 1);
    const size_t statistic = m.Statistic(b, h, t);
    // The largest score may come as an exponent to the base 2.
    bounds.statistics[statistic] =
        -std::log1p(-sums) + kOfBaseTwo * Unit() * largest +
        static_cast<double>(kExponential) * Unit() * std::log(t - first + 1.0) +
        Unit() * std::fabs(exact.statistics[statistic]);
    // The result is a quotient of two such sums; weights are operands of one.
    const double relative =
        (1.0 + sums) / (1.0 - sums) * (1.0 + Gamma(kExponential + 1)) * m.stored - 1.0;
    for (size_t d = 0; d < m.D; ++d) {
      double sum_abs = 0, lost = 0;
      for (size_t u = first; u <= t; ++u) {
        const double value = m.x[m.Value(b, h, u) + d];
        sum_abs += exact.weights[statistic * m.T + u] * value;
        lost += Underflow() * (value + 1.0);
      }
      bounds.y[m.Output(b, h, t) + d] = relative * sum_abs + lost;
    }
  };
  for (size_t b = 0; b < m.B; ++b) {
    for (size_t h = 0; h < m.H; ++h) {
      for (size_t t = 0; t < m.T; ++t) of_query(b, h, t);
    }
  }
  return bounds;
}

Vector BoundsOfAttentionGradient(const AttentionShape& shape, Values dy, Values qkv,
                                 const AttentionOutput& exact, DType type) {
  const Magnitudes m(shape, qkv, type);
  // Terms of a sum, then the operations on its result.
  const auto keys = m.Sum(m.T) + kTurning + 2 * kScaling + kTurning;
  const auto queries = m.Sum(m.T * m.H / m.G) + kTurning + kScaling + kTurning;
  // dy v and dy y, of which the latter may be summed in 32 lanes and has a rounded y; then their
  // difference and the product with a weight, and with the slope of the cap.
  const int64_t gradient_roundings = m.Sum(m.D) + 32 + (m.cap == 0.0 ? 3 : 4);
  Vector bounds(qkv.size());
  const auto of_pair = [&](size_t b, size_t h, size_t t, size_t u) {
    const size_t q = m.Query(b, h, t), k = m.Key(b, h, u), v = m.Value(b, h, u);
    const size_t y = m.Output(b, h, t), statistic = m.Statistic(b, h, t);
    const double weight = exact.weights[statistic * m.T + u];
    const auto score = m.Score(b, h, t, u);
    // The statistic is rounded, and so is the difference.
    const double weight_error = RelativeError(
        score.error + Unit() * ((2.0 + kOfBaseTwo) * std::fabs(exact.statistics[statistic]) +
                                score.magnitude),
        kExponential);
    // The slope of the cap, 1 - (s / c)^2, has an error that is not relative to it.
    double slope = 1.0, slope_error = 0.0;
    if (m.cap != 0.0) {
      const double share = exact.scores[statistic * m.T + u] / m.cap;
      const double share_error = m.QuotientError(score);
      slope = 1.0 - share * share;
      slope_error = (2.0 * std::fabs(share) + share_error) * share_error + 2.0 * Unit();
    }
    double terms = 0;
    for (size_t d = 0; d < m.D; ++d) {
      terms += std::fabs(dy[y + d]) * (m.x[v + d] + std::fabs(exact.y[y + d]));
    }
    // y, and then the gradient, are rounded to the activation type.
    const double gradient_error =
        (1.0 + weight_error) * (1.0 + Gamma(gradient_roundings)) * m.stored * m.stored - 1.0;
    const auto off = [&](double relative, int64_t roundings) {
      return (1.0 + relative) * (1.0 + Gamma(roundings)) - 1.0;
    };
    // The other operand is rotated, and the result may be stored before it is rotated back.
    const auto of_turned = [&](double relative) {
      return (1.0 + relative) * m.turned * m.turned - 1.0;
    };
    // The sums of each head of a group may be stored.
    const double of_heads = m.H > m.G ? m.stored : 1.0;
    const auto of_score = [&](double relative) {
      const double error = slope * relative + slope_error * (1.0 + relative);
      return (weight * error + Underflow()) * terms * m.scale;
    };
    const double to_query = of_score(off(of_turned(gradient_error), keys));
    const double to_key =
        of_score(off((1.0 + of_turned(gradient_error)) * of_heads - 1.0, queries));
    const double to_value =
        weight * off((1.0 + weight_error) * m.stored * of_heads - 1.0, queries) + Underflow();
    for (size_t d = 0; d < m.D; ++d) {
      bounds[q + d] += to_query * m.x[k + d] + Underflow();
      bounds[k + d] += to_key * m.x[q + d] + Underflow();
      bounds[v + d] += to_value * std::fabs(dy[y + d]) + Underflow();
    }
  };
  for (size_t b = 0; b < m.B; ++b) {
    for (size_t h = 0; h < m.H; ++h) {
      for (size_t t = 0; t < m.T; ++t) {
        for (size_t u = exact.first[b * m.T + t]; u <= t; ++u) of_pair(b, h, t, u);
      }
    }
  }
  return Magnitudes::Turned(shape, bounds);
}

}  // namespace stagecoach::kernels
