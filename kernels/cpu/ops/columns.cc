#include "kernels/ops/columns.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTileElements = 1 << 14;

// This file is compiled without contraction (kernels/CMakeLists.txt): a fused multiply-add, which
// narrow processors do not have, would round once.
template <typename T>
void AddScaled(const T* __restrict from, float scale, int64_t n, T* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] + scale * from[i];
}

template <typename T>
void CopyScaled(const T* __restrict from, float scale, int64_t n, T* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = scale * from[i];
}

// Names of extents are those of kernels/ops/columns.h.
template <typename T>
class CpuColumns final : public ColumnsOp {
 public:
  explicit CpuColumns(const ColumnsShape& shape)
      : C_(shape.columns),
        first_(shape.first),
        N_(shape.count),
        tiles_(shape.rows, std::max<int64_t>(1, kTileElements / N_)) {}

  absl::Status Add(Stream& stream, const Tensor& part, float scale, const Tensor& whole) override {
    ForEachRow(stream, whole, part,
               [=, this](T* columns, const T* row) { AddScaled(row, scale, N_, columns); });
    return absl::OkStatus();
  }

  absl::Status Take(Stream& stream, const Tensor& whole, float scale, const Tensor& part) override {
    ForEachRow(stream, whole, part,
               [=, this](const T* columns, T* row) { CopyScaled(columns, scale, N_, row); });
    return absl::OkStatus();
  }

 private:
  // Calls work(the columns in a row of the whole, that row of the part) for each row.
  template <typename F>
  void ForEachRow(Stream& stream, const Tensor& whole, const Tensor& part, F work) const {
    AsCpu(stream).ParallelFor(tiles_.count, [&](int tile, int) {
      const int64_t begin = tiles_.begin(tile);
      for (int64_t r = begin; r < begin + tiles_.length(tile); ++r) {
        work(Elements<T>(whole) + r * C_ + first_, Elements<T>(part) + r * N_);
      }
    });
  }

  const int64_t C_, first_, N_;
  const Tiling tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnsOp>> CreateOnCpu(const ColumnsShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckColumns(shape, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ColumnsOp> {
    return std::make_unique<CpuColumns<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
