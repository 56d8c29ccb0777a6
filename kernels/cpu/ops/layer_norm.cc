#include "kernels/ops/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/products/lane_sum.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kRowTile = 16;
constexpr int64_t kColumnTile = 576;

// If kCenters is false, it is RMSNorm.
template <typename T, bool kCenters>
class CpuLayerNorm final : public LayerNormOp {
 public:
  explicit CpuLayerNorm(const LayerNormShape& shape)
      : C_(shape.features),
        R_(shape.rows),
        epsilon_(shape.epsilon),
        row_tiles_(R_, kRowTile),
        column_tiles_(C_, kColumnTile) {}

  int64_t workspace_bytes() const override { return 0; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                       const Tensor& addend, const Tensor& statistics, const Tensor& y) override {
    ForEachRow(stream, [&](int64_t r) {
      T* const xr = Elements<T>(x) + r * C_;
      if (!addend.empty()) {
        const T* const ar = Elements<T>(addend) + r * C_;
        for (int64_t c = 0; c < C_; ++c) xr[c] = xr[c] + ar[c];
      }
      const float n = static_cast<float>(C_);
      float mean = 0.0F;
      if constexpr (kCenters) mean = LaneSum(C_, [&](int64_t c) -> float { return xr[c]; }) / n;
      const float variance =
          LaneSum(C_, [&](int64_t c) { return (xr[c] - mean) * (xr[c] - mean); }) / n;
      const float rstd = 1.0F / std::sqrt(variance + epsilon_);
      const T* const g = Elements<T>(gamma);
      T* const yr = Elements<T>(y) + r * C_;
      if constexpr (kCenters) {
        statistics.f32()[2 * r] = mean;
        statistics.f32()[2 * r + 1] = rstd;
        const T* const b = Elements<T>(beta);
        for (int64_t c = 0; c < C_; ++c) yr[c] = (xr[c] - mean) * rstd * g[c] + b[c];
      } else {
        statistics.f32()[r] = rstd;
        for (int64_t c = 0; c < C_; ++c) yr[c] = xr[c] * rstd * g[c];
      }
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& gamma,
                             const Tensor& statistics, const Tensor& addend,
                             const Tensor& dx) override {
    ForEachRow(stream, [&](int64_t r) {
      const auto [mean, rstd] = StatisticsOf(statistics, r);
      const T* const xr = Elements<T>(x) + r * C_;
      const T* const dyr = Elements<T>(dy) + r * C_;
      const T* const g = Elements<T>(gamma);
      T* const dxr = Elements<T>(dx) + r * C_;
      const auto gradient = [&](int64_t c) { return dyr[c] * g[c]; };
      const auto xhat = [&, mean = mean, rstd = rstd](int64_t c) { return (xr[c] - mean) * rstd; };
      const float n = static_cast<float>(C_);
      float mean_g = 0.0F;
      if constexpr (kCenters) mean_g = LaneSum(C_, gradient) / n;
      const float mean_gx = LaneSum(C_, [&](int64_t c) { return gradient(c) * xhat(c); }) / n;
      const auto normalized = [&, rstd = rstd](int64_t c) {
        return rstd * (gradient(c) - mean_g - xhat(c) * mean_gx);
      };
      if (addend.empty()) {
        for (int64_t c = 0; c < C_; ++c) dxr[c] = normalized(c);
      } else {
        const T* const ar = Elements<T>(addend) + r * C_;
        for (int64_t c = 0; c < C_; ++c) dxr[c] = ar[c] + normalized(c);
      }
    });
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                              const Tensor& statistics, const Tensor& dgamma, const Tensor& dbeta,
                              bool accumulate, std::byte* /*workspace*/) override {
    AsCpu(stream).ParallelFor(column_tiles_.count, [&](int tile, int) {
      const int64_t begin = column_tiles_.begin(tile);
      const int64_t end = begin + column_tiles_.length(tile);
      float* const dg = dgamma.f32();
      float* const db = kCenters ? dbeta.f32() : nullptr;
      if (!accumulate) {
        std::fill(dg + begin, dg + end, 0.0F);
        if constexpr (kCenters) std::fill(db + begin, db + end, 0.0F);
      }
      for (int64_t r = 0; r < R_; ++r) {
        const auto [mean, rstd] = StatisticsOf(statistics, r);
        const T* const xr = Elements<T>(x) + r * C_;
        const T* const dyr = Elements<T>(dy) + r * C_;
        for (int64_t c = begin; c < end; ++c) {
          dg[c] += dyr[c] * (xr[c] - mean) * rstd;
          if constexpr (kCenters) db[c] += dyr[c];
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  struct Statistics {
    float mean, rstd;
  };
  static Statistics StatisticsOf(const Tensor& statistics, int64_t r) {
    if constexpr (kCenters) return {statistics.f32()[2 * r], statistics.f32()[2 * r + 1]};
    return {0.0F, statistics.f32()[r]};
  }

  template <typename F>
  void ForEachRow(Stream& stream, F row) const {
    AsCpu(stream).ParallelFor(row_tiles_.count, [&](int tile, int) {
      const int64_t begin = row_tiles_.begin(tile);
      for (int64_t r = begin; r < begin + row_tiles_.length(tile); ++r) row(r);
    });
  }

  const int64_t C_, R_;
  const float epsilon_;
  const Tiling row_tiles_, column_tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateOnCpu(const LayerNormShape& shape,
                                                         Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.features) || !(shape.epsilon > 0.0F)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer norm: extents must be 1 to ", kMaxExtent, " and epsilon positive: ", shape.rows,
        " rows, ", shape.features, " features, epsilon ", shape.epsilon));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<LayerNormOp> {
    if (!shape.centers) return std::make_unique<CpuLayerNorm<T, false>>(shape);
    return std::make_unique<CpuLayerNorm<T, true>>(shape);
  });
}

}  // namespace stagecoach::kernels
