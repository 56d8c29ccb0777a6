#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 15;
constexpr int64_t kSumTile = 1 << 10;
constexpr size_t kMostLevels = 24;  // of a tree of addends

using SumBuffers = std::array<std::array<float, kSumTile>, kMostLevels>;

bool HasNone(absl::Span<const Tensor> addends) {
  return std::all_of(addends.begin(), addends.end(),
                     [](const Tensor& addend) { return addend.empty(); });
}

// Returns the sum of n elements of each addend from `begin` on: one of the addends, or `out`, to
// which nothing is written before all addends but the last two have been read. The buffers from
// `level` on are free.
const float* SumTile(absl::Span<const Tensor> addends, int64_t begin, int64_t n, float* out,
                     SumBuffers& buffers, size_t level) {
  if (addends.size() == 1) return addends[0].f32() + begin;
  const size_t half = std::bit_floor(addends.size() - 1);
  const absl::Span<const Tensor> left = addends.subspan(0, half), right = addends.subspan(half);
  if (HasNone(right)) return SumTile(left, begin, n, out, buffers, level);
  if (HasNone(left)) return SumTile(right, begin, n, out, buffers, level);
  const float* const a = SumTile(left, begin, n, buffers[level].data(), buffers, level + 1);
  const float* const b = SumTile(right, begin, n, out, buffers, level + 1);
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  return out;
}

template <typename T>
void AddTile(const Tensor& a, const Tensor& b, int64_t begin, int64_t n, const Tensor& y) {
  const T* const as = Elements<T>(a) + begin;
  const T* const bs = Elements<T>(b) + begin;
  T* const ys = Elements<T>(y) + begin;
  for (int64_t i = 0; i < n; ++i) ys[i] = as[i] + bs[i];
}

}  // namespace

absl::Status CpuElementwiseOps::Add(Stream& stream, const Tensor& a, const Tensor& b,
                                    const Tensor& y) {
  const Tiling tiles(y.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    const int64_t begin = tiles.begin(tile), n = tiles.length(tile);
    if (y.dtype == DType::kBfloat16) {
      AddTile<Bfloat16>(a, b, begin, n, y);
    } else {
      AddTile<float>(a, b, begin, n, y);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::SumTree(Stream& stream, absl::Span<const Tensor> addends,
                                        const Tensor& y) {
  STAGECOACH_CHECK(addends.size() <= size_t{1} << kMostLevels, "too many addends");
  const Tiling tiles(y.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    SumBuffers buffers;
    const int64_t end = tiles.begin(tile) + tiles.length(tile);
    for (int64_t begin = tiles.begin(tile); begin < end; begin += kSumTile) {
      const int64_t n = std::min(kSumTile, end - begin);
      float* const to = y.f32() + begin;
      const float* const sum = SumTile(addends, begin, n, to, buffers, 0);
      if (sum != to) std::memcpy(to, sum, static_cast<size_t>(n) * sizeof(float));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Copy(Stream& stream, const Tensor& x, const Tensor& y) {
  const Tiling tiles(y.bytes(), kTile * SizeOf(DType::kFloat32));
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    std::memcpy(Elements<std::byte>(y) + tiles.begin(tile),
                Elements<std::byte>(x) + tiles.begin(tile),
                static_cast<size_t>(tiles.length(tile)));
  });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Clear(Stream& stream, const Tensor& y) {
  const Tiling tiles(y.bytes(), kTile * SizeOf(DType::kFloat32));
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    std::memset(Elements<std::byte>(y) + tiles.begin(tile), 0,
                static_cast<size_t>(tiles.length(tile)));
  });
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
