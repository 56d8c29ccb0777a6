#include "kernels/ops/concat.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kTileElements = 1 << 14;

template <typename T>
class CpuConcat final : public ConcatOp {
 public:
  explicit CpuConcat(const ConcatShape& shape)
      : A_(shape.first),
        B_(shape.second),
        tiles_(shape.rows, std::max<int64_t>(1, kTileElements / (A_ + B_))) {}

  absl::Status Join(Stream& stream, const Tensor& first, const Tensor& second,
                    const Tensor& whole) override {
    ForEachRow(stream, [&](int64_t r) {
      T* const row = Elements<T>(whole) + r * (A_ + B_);
      std::copy_n(Elements<T>(first) + r * A_, A_, row);
      std::copy_n(Elements<T>(second) + r * B_, B_, row + A_);
    });
    return absl::OkStatus();
  }

  absl::Status Split(Stream& stream, const Tensor& whole, const Tensor& first,
                     const Tensor& second) override {
    ForEachRow(stream, [&](int64_t r) {
      const T* const row = Elements<T>(whole) + r * (A_ + B_);
      if (!first.empty()) std::copy_n(row, A_, Elements<T>(first) + r * A_);
      if (!second.empty()) std::copy_n(row + A_, B_, Elements<T>(second) + r * B_);
    });
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void ForEachRow(Stream& stream, F row) const {
    AsCpu(stream).ParallelFor(tiles_.count, [&](int tile, int) {
      const int64_t begin = tiles_.begin(tile);
      for (int64_t r = begin; r < begin + tiles_.length(tile); ++r) row(r);
    });
  }

  const int64_t A_, B_;
  const Tiling tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ConcatOp>> CreateOnCpu(const ConcatShape& shape, Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.first) || !IsExtent(shape.second)) {
    return absl::InvalidArgumentError(absl::StrCat("concat: extents must be 1 to ", kMaxExtent,
                                                   ": ", shape.rows, " rows of ", shape.first,
                                                   " and ", shape.second));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ConcatOp> {
    return std::make_unique<CpuConcat<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
