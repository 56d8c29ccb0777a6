#include <cstring>

#include "kernels/cpu/ops/cpu_ops.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 15;

}  // namespace

absl::Status CpuElementwiseOps::Add(Stream& stream, const Tensor& a, const Tensor& b,
                                    const Tensor& y) {
  const Tiling tiles(y.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t end = tiles.begin(tile) + tiles.length(tile);
    for (int64_t i = tiles.begin(tile); i < end; ++i) y.f32()[i] = a.f32()[i] + b.f32()[i];
  });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Copy(Stream& stream, const Tensor& x, const Tensor& y) {
  const Tiling tiles(y.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    std::memcpy(y.f32() + tiles.begin(tile), x.f32() + tiles.begin(tile),
                static_cast<size_t>(tiles.length(tile)) * sizeof(float));
  });
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
