#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/reference.h"

// Names of extents are those of kernels/ops/attention.h; t is the position of a query, u that of a
// key.
namespace stagecoach::kernels::reference {
namespace {

struct AttentionPlaces {
  explicit AttentionPlaces(const AttentionShape& shape)
      : B(shape.samples),
        T(shape.positions),
        H(shape.heads),
        G(shape.kv_heads),
        D(shape.head_size),
        R(shape.rotary_size == 0 ? D : static_cast<size_t>(shape.rotary_size)),
        base(shape.rotary_base),
        scaling(shape.rotary_scaling),
        scale(shape.scale == 0.0F ? 1.0 / std::sqrt(static_cast<double>(D)) : shape.scale),
        cap(shape.score_cap) {}

  size_t Row(size_t b, size_t t) const { return (b * T + t) * (H + 2 * G) * D; }
  size_t Query(size_t b, size_t h, size_t t) const { return Row(b, t) + h * D; }
  size_t Key(size_t b, size_t h, size_t u) const { return Row(b, u) + (H + h / (H / G)) * D; }
  size_t Value(size_t b, size_t h, size_t u) const { return Key(b, h, u) + G * D; }
  size_t Output(size_t b, size_t h, size_t t) const { return ((b * T + t) * H + h) * D; }
  size_t Statistic(size_t b, size_t h, size_t t) const { return (b * H + h) * T + t; }
  size_t Weight(size_t b, size_t h, size_t t, size_t u) const { return Statistic(b, h, t) * T + u; }
  template <typename Body>
  void ForEachQuery(Body body) const {
    for (size_t b = 0; b < B; ++b) {
      for (size_t h = 0; h < H; ++h) {
        for (size_t t = 0; t < T; ++t) body(b, h, t);
      }
    }
  }

  size_t B, T, H, G, D, R;
  double base;
  RotaryScaling scaling;
  double scale, cap;
};

// Returns the first position that each one sees.
std::vector<size_t> FirstSeen(const AttentionShape& shape, absl::Span<const int32_t> documents) {
  const auto B = static_cast<size_t>(shape.samples), T = static_cast<size_t>(shape.positions);
  const auto window = static_cast<size_t>(shape.window);
  STAGECOACH_CHECK(documents.size() == (shape.has_documents ? B * T : 0),
                   absl::StrCat(documents.size(), " positions have a document"));
  std::vector<size_t> first(B * T);
  for (size_t i = 0; i < B * T; ++i) {
    const size_t t = i % T;
    if (window > 0 && t >= window) first[i] = t - window + 1;
    if (shape.has_documents) first[i] = std::max(first[i], static_cast<size_t>(documents[i]));
  }
  return first;
}

// Returns the frequency of pair i of a head.
double FrequencyOf(const AttentionPlaces& at, size_t i) {
  if (i >= at.R / 2) return 0.0;
  const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(at.R);
  const double plain = std::pow(at.base, exponent);
  return at.scaling.pairs == 0 ? plain : plain / at.scaling.divisors[i];
}

// Returns queries and keys rotated by their position and scaled, or rotated back and scaled if
// `direction` is -1.
Vector Turned(const AttentionPlaces& at, Values qkv, double direction) {
  Vector turned(qkv.begin(), qkv.end());
  if (at.base == 0.0) return turned;
  for (size_t row = 0; row < at.B * at.T; ++row) {
    const double t = static_cast<double>(row % at.T);
    for (size_t head = 0; head < at.H + at.G; ++head) {
      double* const x = &turned[row * (at.H + 2 * at.G) * at.D + head * at.D];
      for (size_t i = 0; i < at.D / 2; ++i) {
        const double angle = direction * t * FrequencyOf(at, i);
        const double scale = i < at.R / 2 ? at.scaling.scale : 1.0;
        const double a = scale * x[i], b = scale * x[i + at.D / 2];
        x[i] = a * std::cos(angle) - b * std::sin(angle);
        x[i + at.D / 2] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  return turned;
}

double DotOf(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

RotaryScaling ScaledRotation(int64_t pairs, double scale) {
  RotaryScaling scaling = {.pairs = pairs, .scale = scale};
  for (int64_t i = 0; i < pairs; ++i) scaling.divisors[i] = 1.0 + 0.75 * static_cast<double>(i);
  return scaling;
}

AttentionOutput AttentionForward(const AttentionShape& shape, Values qkv,
                                 absl::Span<const int32_t> documents) {
  const AttentionPlaces at(shape);
  STAGECOACH_CHECK(qkv.size() == at.Row(at.B, 0), absl::StrCat(qkv.size(), " values"));
  const Vector x = Turned(at, qkv, 1.0);
  AttentionOutput out{FirstSeen(shape, documents), Vector(at.B * at.H * at.T * at.T),
                      Vector(at.B * at.H * at.T * at.T), Vector(at.B * at.H * at.T),
                      Vector(at.B * at.T * at.H * at.D)};
  at.ForEachQuery([&](size_t b, size_t h, size_t t) {
    const size_t first = out.first[b * at.T + t];
    const absl::Span<double> scores =
        absl::MakeSpan(out.scores).subspan(at.Weight(b, h, t, 0), at.T);
    for (size_t u = first; u <= t; ++u) {
      scores[u] = at.scale * DotOf(&x[at.Query(b, h, t)], &x[at.Key(b, h, u)], at.D);
      if (at.cap > 0.0) scores[u] = at.cap * std::tanh(scores[u] / at.cap);
    }
    const double largest = *std::max_element(&scores[first], &scores[t] + 1);
    double sum = 0;
    for (size_t u = first; u <= t; ++u) sum += std::exp(scores[u] - largest);
    for (size_t u = first; u <= t; ++u) {
      const double weight = std::exp(scores[u] - largest) / sum;
      out.weights[at.Weight(b, h, t, u)] = weight;
      for (size_t d = 0; d < at.D; ++d) {
        out.y[at.Output(b, h, t) + d] += weight * x[at.Value(b, h, u) + d];
      }
    }
    out.statistics[at.Statistic(b, h, t)] = largest + std::log(sum);
  });
  return out;
}

Vector AttentionBackwardInput(const AttentionShape& shape, Values dy, Values qkv,
                              absl::Span<const int32_t> documents) {
  const AttentionPlaces at(shape);
  const AttentionOutput forward = AttentionForward(shape, qkv, documents);
  STAGECOACH_CHECK(dy.size() == forward.y.size(), absl::StrCat(dy.size(), " values"));
  const Vector x = Turned(at, qkv, 1.0);
  Vector dx(qkv.size());
  at.ForEachQuery([&](size_t b, size_t h, size_t t) {
    const size_t q = at.Query(b, h, t);
    const double* const dy_t = &dy[at.Output(b, h, t)];
    const double mean = DotOf(dy_t, &forward.y[at.Output(b, h, t)], at.D);
    for (size_t u = forward.first[b * at.T + t]; u <= t; ++u) {
      const size_t k = at.Key(b, h, u), v = at.Value(b, h, u);
      const double weight = forward.weights[at.Weight(b, h, t, u)];
      double gradient = weight * (DotOf(dy_t, &x[v], at.D) - mean);
      if (at.cap > 0.0) {
        const double share = forward.scores[at.Weight(b, h, t, u)] / at.cap;
        gradient *= 1.0 - share * share;
      }
      for (size_t d = 0; d < at.D; ++d) {
        dx[q + d] += at.scale * gradient * x[k + d];
        dx[k + d] += at.scale * gradient * x[q + d];
        dx[v + d] += weight * dy_t[d];
      }
    }
  });
  return Turned(at, dx, -1.0);
}

}  // namespace stagecoach::kernels::reference
