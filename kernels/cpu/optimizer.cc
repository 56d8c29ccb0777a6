#include <array>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 16;

}  // namespace

absl::Status CpuOptimizerOps::AdamW(Stream& stream, const AdamWStep& step, const Tensor& parameter,
                                    const Tensor& gradient, const Tensor& m, const Tensor& v) {
  // The bias corrections depend on the step alone: computed once, in double.
  const double t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  const float rate = static_cast<float>(step.learning_rate / correction1);
  const float root = static_cast<float>(1.0 / std::sqrt(correction2));
  const float keep = 1.0F - step.learning_rate * step.weight_decay;
  const float beta1 = step.beta1;
  const float beta2 = step.beta2;
  const float epsilon = step.epsilon;
  const float scale = step.gradient_scale;
  const Tiling tiles(parameter.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t n = tiles.length(tile);
    float* __restrict const p = parameter.f32() + tiles.begin(tile);
    const float* __restrict const g = gradient.f32() + tiles.begin(tile);
    float* __restrict const mt = m.f32() + tiles.begin(tile);
    float* __restrict const vt = v.f32() + tiles.begin(tile);
    for (int64_t i = 0; i < n; ++i) {
      const float gi = g[i] * scale;
      const float mi = beta1 * mt[i] + (1.0F - beta1) * gi;
      const float vi = beta2 * vt[i] + (1.0F - beta2) * gi * gi;
      mt[i] = mi;
      vt[i] = vi;
      p[i] = keep * p[i] - rate * mi / (std::sqrt(vi) * root + epsilon);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Sgd(Stream& stream, const SgdStep& step, const Tensor& parameter,
                                  const Tensor& gradient, const Tensor& momentum) {
  const Tiling tiles(parameter.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t n = tiles.length(tile);
    float* __restrict const p = parameter.f32() + tiles.begin(tile);
    const float* __restrict const g = gradient.f32() + tiles.begin(tile);
    float* __restrict const mt = momentum.f32() + tiles.begin(tile);
    for (int64_t i = 0; i < n; ++i) {
      const float mi = step.momentum * mt[i] + g[i] * step.gradient_scale + step.weight_decay * p[i];
      mt[i] = mi;
      p[i] -= step.learning_rate * mi;
    }
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
