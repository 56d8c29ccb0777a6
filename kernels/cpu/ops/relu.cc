#include "kernels/ops/relu.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kReluTile = 1 << 15;

// T: of activations.
template <typename T>
class CpuRelu final : public ReluOp {
 public:
  explicit CpuRelu(int64_t elements) : tiles_(elements, kReluTile) {}

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& addend,
                       const Tensor& y) override {
    ForEachTile(stream, [&](int64_t begin, int64_t end) {
      const T* const xs = Elements<T>(x);
      T* const ys = Elements<T>(y);
      if (addend.empty()) {
        for (int64_t i = begin; i < end; ++i) ys[i] = std::max<float>(0.0F, xs[i]);
        return;
      }
      const T* const as = Elements<T>(addend);
      for (int64_t i = begin; i < end; ++i) ys[i] = std::max<float>(0.0F, xs[i] + as[i]);
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y,
                             const Tensor& dx) override {
    ForEachTile(stream, [&](int64_t begin, int64_t end) {
      const T* const dys = Elements<T>(dy);
      const T* const ys = Elements<T>(y);
      T* const dxs = Elements<T>(dx);
      for (int64_t i = begin; i < end; ++i) dxs[i] = ys[i] > 0.0F ? dys[i] : T(0.0F);
    });
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void ForEachTile(Stream& stream, F range) const {
    AsCpu(stream).ParallelFor(tiles_.count, [&](int tile, int) {
      range(tiles_.begin(tile), tiles_.begin(tile) + tiles_.length(tile));
    });
  }

  const Tiling tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReluOp>> CreateOnCpu(const ReluShape& shape, Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.features)) {
    return absl::InvalidArgumentError(absl::StrCat("relu: extents must be 1 to ", kMaxExtent, ": ",
                                                   shape.rows, " rows, ", shape.features,
                                                   " features"));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ReluOp> {
    return std::make_unique<CpuRelu<T>>(shape.rows * shape.features);
  });
}

}  // namespace stagecoach::kernels
