#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTile = 1 << 15;
constexpr int64_t kSumTile = 1 << 10;
constexpr size_t kMostLevels = 16;  // of a tree of addends

using SumBuffers = std::array<std::array<float, kSumTile>, kMostLevels>;

// Computes out = the sum of n elements of each addend from `begin` on. The buffers from `level` on
// are free.
void SumTile(absl::Span<const Tensor> addends, int64_t begin, int64_t n, float* out,
             SumBuffers& buffers, size_t level) {
  if (addends.size() == 1) {
    std::memcpy(out, addends[0].f32() + begin, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (addends.size() == 2) {
    const float* const a = addends[0].f32() + begin;
    const float* const b = addends[1].f32() + begin;
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
    return;
  }
  const size_t half = addends.size() / 2;
  float* const right = buffers[level].data();
  SumTile(addends.subspan(0, half), begin, n, out, buffers, level + 1);
  SumTile(addends.subspan(half), begin, n, right, buffers, level + 1);
  for (int64_t i = 0; i < n; ++i) out[i] += right[i];
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
  STAGECOACH_CHECK(addends.size() < size_t{1} << (kMostLevels - 1), "too many addends");
  const Tiling tiles(y.elements(), kTile);
  AsCpu(stream).ParallelFor(tiles.count, [&](int tile, int) {
    SumBuffers buffers;
    const int64_t end = tiles.begin(tile) + tiles.length(tile);
    for (int64_t begin = tiles.begin(tile); begin < end; begin += kSumTile) {
      const int64_t n = std::min(kSumTile, end - begin);
      // y may be the memory of an addend that is read later.
      float* const sum = addends.size() > 2 ? buffers[0].data() : y.f32() + begin;
      SumTile(addends, begin, n, sum, buffers, 1);
      if (addends.size() > 2) {
        std::memcpy(y.f32() + begin, sum, static_cast<size_t>(n) * sizeof(float));
      }
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

}  // namespace stagecoach::kernels
