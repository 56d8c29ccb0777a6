#include <array>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 16;

// The coefficients of AdamW with what depends on the step alone worked out.
struct AdamWCoefficients {
  float beta1, beta2, epsilon, scale;
  float rate;  // learning rate / (1 - beta1^t)
  float root;  // 1 / sqrt(1 - beta2^t)
  float keep;  // 1 - learning rate * weight decay
};

// By value: a coefficient behind a reference could be changed by a store to `p`, for all the
// compiler knows, and the loop would not become vectors.
void AdamWTile(const AdamWCoefficients c, int64_t n, const float* __restrict g, float* __restrict p,
               float* __restrict m, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    const float gi = g[i] * c.scale;
    const float mi = c.beta1 * m[i] + (1.0F - c.beta1) * gi;
    const float vi = c.beta2 * v[i] + (1.0F - c.beta2) * gi * gi;
    m[i] = mi;
    v[i] = vi;
    p[i] = c.keep * p[i] - c.rate * mi / (std::sqrt(vi) * c.root + c.epsilon);
  }
}

void SgdTile(const SgdStep step, int64_t n, const float* __restrict g, float* __restrict p,
             float* __restrict m) {
  for (int64_t i = 0; i < n; ++i) {
    const float mi = step.momentum * m[i] + g[i] * step.gradient_scale + step.weight_decay * p[i];
    m[i] = mi;
    p[i] -= step.learning_rate * mi;
  }
}

}  // namespace

absl::Status CpuOptimizerOps::AdamW(Stream& stream, const AdamWStep& step, const Tensor& parameter,
                                    const Tensor& gradient, const Tensor& m, const Tensor& v) {
  // In double: 1 - beta^t has few digits left at the first steps.
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  const AdamWCoefficients coefficients = {
      .beta1 = step.beta1,
      .beta2 = step.beta2,
      .epsilon = step.epsilon,
      .scale = step.gradient_scale,
      .rate = static_cast<float>(step.learning_rate / correction1),
      .root = static_cast<float>(1.0 / std::sqrt(correction2)),
      .keep = 1.0F - step.learning_rate * step.weight_decay};
  const Tiling tiles(parameter.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t begin = tiles.begin(tile);
    AdamWTile(coefficients, tiles.length(tile), gradient.f32() + begin, parameter.f32() + begin,
              m.f32() + begin, v.f32() + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Sgd(Stream& stream, const SgdStep& step, const Tensor& parameter,
                                  const Tensor& gradient, const Tensor& momentum) {
  const Tiling tiles(parameter.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t begin = tiles.begin(tile);
    SgdTile(step, tiles.length(tile), gradient.f32() + begin, parameter.f32() + begin,
            momentum.f32() + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::SquaredNorm(Stream& stream, const Tensor& x, const Tensor& result) {
  // At most kMaxTiles partial sums, each over a fixed range: the same bits whoever computes them.
  constexpr int64_t kMaxTiles = 256;
  const int64_t n = x.elements();
  const Tiling tiles(n, std::max(kTile, (n + kMaxTiles - 1) / kMaxTiles));
  std::array<double, kMaxTiles + 1> partial;
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    constexpr int64_t kLanes = 8;
    std::array<double, kLanes> lanes{};
    const float* const values = x.f32() + tiles.begin(tile);
    const int64_t length = tiles.length(tile);
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = values[i + lane];
        lanes[static_cast<size_t>(lane)] += value * value;
      }
    }
    for (; i < length; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
    double sum = 0.0;
    for (double lane : lanes) sum += lane;
    partial[static_cast<size_t>(tile)] = sum;
  });
  double sum = 0.0;
  for (int tile = 0; tile < tiles.count; ++tile) sum += partial[static_cast<size_t>(tile)];
  *result.f64() = sum;
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
