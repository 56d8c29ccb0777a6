#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 16;

// AdamW's coefficients, with everything that depends on the step alone precomputed.
struct AdamWCoefficients {
  float beta1, beta2, epsilon, scale;
  float rate;  // learning rate / (1 - beta1^t)
  float root;  // 1 / sqrt(1 - beta2^t)
  float keep;  // 1 - learning rate * weight decay
};

// Takes the coefficients by value: for all the compiler knows, a store to `p` could change a
// coefficient behind a reference, and the loop would not be vectorized.
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

struct SgdCoefficients {
  float rate, momentum, decay, scale;
};

void SgdTile(const SgdCoefficients c, int64_t n, const float* __restrict g, float* __restrict p,
             float* __restrict m) {
  for (int64_t i = 0; i < n; ++i) {
    const float mi = c.momentum * m[i] + g[i] * c.scale + c.decay * p[i];
    m[i] = mi;
    p[i] -= c.rate * mi;
  }
}

// Moves the average of n elements towards their new values, while these are in a cache.
void AverageTile(const ParameterTensors& parameter, float share, int64_t begin, int64_t n) {
  if (parameter.ema.empty()) return;
  const float* __restrict p = parameter.value.f32() + begin;
  float* __restrict ema = parameter.ema.f32() + begin;
  for (int64_t i = 0; i < n; ++i) ema[i] += share * (p[i] - ema[i]);
}

// Rounds n elements of a parameter from `begin` on, for the layers, directly after their update,
// while they are in a cache.
void RoundTile(const ParameterTensors& parameter, int64_t begin, int64_t n) {
  if (parameter.working.empty()) return;
  Convert(parameter.value.f32() + begin, n, Elements<Bfloat16>(parameter.working) + begin);
}

void UpdateAverage(CpuStream& stream, const ParameterTensors& parameter) {
  const float keep = 1.0F - parameter.average->momentum;
  const float take = parameter.average->momentum * parameter.average->share;
  const Tiling tiles(parameter.value.elements(), kTile);
  stream.ParallelFor(tiles.count, [&](int tile, int) {
    float* const p = parameter.value.f32() + tiles.begin(tile);
    const float* const sum = parameter.gradient.f32() + tiles.begin(tile);
    for (int64_t i = 0; i < tiles.length(tile); ++i) p[i] = keep * p[i] + take * sum[i];
  });
}

class CpuParameterGroup final : public ParameterGroup {
 public:
  explicit CpuParameterGroup(absl::Span<const ParameterTensors> parameters)
      : parameters_(parameters.begin(), parameters.end()) {}

  const std::vector<ParameterTensors>& parameters() const { return parameters_; }

 private:
  const std::vector<ParameterTensors> parameters_;
};

const std::vector<ParameterTensors>& ParametersOf(const ParameterGroup& group) {
  return static_cast<const CpuParameterGroup&>(group).parameters();
}

float ScaleOf(const Tensor& scale) { return scale.empty() ? 1.0F : *scale.f32(); }

double SumOfSquares(CpuStream& stream, const Tensor& x) {
  // The most partial sums, each over a fixed range: the bits do not depend on the thread.
  constexpr int64_t kMaxTiles = 256;
  const int64_t n = x.elements();
  const Tiling tiles(n, std::max(kTile, (n + kMaxTiles - 1) / kMaxTiles));
  std::array<double, kMaxTiles + 1> partial;
  stream.ParallelFor(tiles.count, [&](int tile, int) {
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
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterGroup>> CpuOptimizerOps::CreateGroup(
    Stream& /*stream*/, absl::Span<const ParameterTensors> parameters) {
  return std::make_unique<CpuParameterGroup>(parameters);
}

absl::Status CpuOptimizerOps::AdamW(Stream& stream, const AdamWStep& step,
                                    const ParameterGroup& group) {
  // Computed in double: 1 - beta^t has few digits left at the first steps.
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  AdamWCoefficients coefficients = {.beta1 = step.beta1,
                                    .beta2 = step.beta2,
                                    .epsilon = step.epsilon,
                                    .scale = ScaleOf(step.gradient_scale),
                                    .root = static_cast<float>(1.0 / std::sqrt(correction2))};
  if (std::isnan(coefficients.scale)) return absl::OkStatus();
  for (const ParameterTensors& parameter : ParametersOf(group)) {
    if (parameter.average.has_value()) {
      UpdateAverage(AsCpu(stream), parameter);
      continue;
    }
    const float learning_rate = step.learning_rate * parameter.rate_factor;
    coefficients.rate = static_cast<float>(learning_rate / correction1);
    coefficients.keep = 1.0F - learning_rate * parameter.DecayOf(step.weight_decay);
    const Tiling tiles(parameter.value.elements(), kTile);
    AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
      const int64_t begin = tiles.begin(tile);
      AdamWTile(coefficients, tiles.length(tile), parameter.gradient.f32() + begin,
                parameter.value.f32() + begin, parameter.states[0].f32() + begin,
                parameter.states[1].f32() + begin);
      AverageTile(parameter, step.ema_share, begin, tiles.length(tile));
      RoundTile(parameter, begin, tiles.length(tile));
    });
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Sgd(Stream& stream, const SgdStep& step,
                                  const ParameterGroup& group) {
  SgdCoefficients coefficients = {.momentum = step.momentum, .scale = ScaleOf(step.gradient_scale)};
  if (std::isnan(coefficients.scale)) return absl::OkStatus();
  for (const ParameterTensors& parameter : ParametersOf(group)) {
    if (parameter.average.has_value()) {
      UpdateAverage(AsCpu(stream), parameter);
      continue;
    }
    coefficients.rate = step.learning_rate * parameter.rate_factor;
    coefficients.decay = parameter.DecayOf(step.weight_decay);
    const Tiling tiles(parameter.value.elements(), kTile);
    AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
      const int64_t begin = tiles.begin(tile);
      SgdTile(coefficients, tiles.length(tile), parameter.gradient.f32() + begin,
              parameter.value.f32() + begin, parameter.states[0].f32() + begin);
      AverageTile(parameter, step.ema_share, begin, tiles.length(tile));
      RoundTile(parameter, begin, tiles.length(tile));
    });
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::RoundParameters(Stream& stream, const ParameterGroup& group) {
  for (const ParameterTensors& parameter : ParametersOf(group)) {
    if (parameter.working.empty()) continue;
    const Tiling tiles(parameter.value.elements(), kTile);
    AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
      RoundTile(parameter, tiles.begin(tile), tiles.length(tile));
    });
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::SwapAverages(Stream& stream, const ParameterGroup& group) {
  for (const ParameterTensors& parameter : ParametersOf(group)) {
    if (parameter.ema.empty()) continue;
    const Tiling tiles(parameter.value.elements(), kTile);
    AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
      float* const p = parameter.value.f32() + tiles.begin(tile);
      std::swap_ranges(p, p + tiles.length(tile), parameter.ema.f32() + tiles.begin(tile));
      RoundTile(parameter, tiles.begin(tile), tiles.length(tile));
    });
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::SquaredNorms(Stream& stream, const ParameterGroup& group,
                                           const Tensor& squares) {
  double* square = squares.f64();
  for (const ParameterTensors& parameter : ParametersOf(group)) {
    *square++ =
        parameter.average.has_value() ? 0.0 : SumOfSquares(AsCpu(stream), parameter.gradient);
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::ClipScale(Stream& /*stream*/, const Tensor& squares, float clip_norm,
                                        const Tensor& norm, const Tensor& scale) {
  const int64_t rows = squares.shape.dim(0);
  const int64_t columns = squares.shape.dim(1);
  double sum = 0.0;
  for (int64_t column = 0; column < columns; ++column) {
    double squared = 0.0;
    for (int64_t row = 0; row < rows; ++row) squared += squares.f64()[row * columns + column];
    sum += squared;
  }
  const double root = std::sqrt(sum);
  *norm.f64() = root;
  *scale.f32() = root > clip_norm ? static_cast<float>(clip_norm / root) : 1.0F;
  if (!std::isfinite(root)) *scale.f32() = std::numeric_limits<float>::quiet_NaN();
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
