#include "kernels/cpu/ops/activation.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/ops/activation.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kActivationTile = 1 << 15;

// T is the type of activations.
template <typename T>
class CpuActivation final : public ActivationOp {
 public:
  explicit CpuActivation(const ActivationShape& shape)
      : activation_(shape.activation), tiles_(shape.rows * shape.features, kActivationTile) {}

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& addend,
                       const Tensor& y) override {
    ForEachTile(stream, [&](auto activation, int64_t begin, int64_t end) {
      const T* const xs = Elements<T>(x);
      T* const ys = Elements<T>(y);
      if (addend.empty()) {
        for (int64_t i = begin; i < end; ++i) ys[i] = activation.Of(xs[i]);
        return;
      }
      const T* const as = Elements<T>(addend);
      for (int64_t i = begin; i < end; ++i) ys[i] = activation.Of(xs[i] + as[i]);
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& known,
                             const Tensor& dx) override {
    ForEachTile(stream, [&](auto activation, int64_t begin, int64_t end) {
      const T* const dys = Elements<T>(dy);
      const T* const knowns = Elements<T>(known);
      T* const dxs = Elements<T>(dx);
      for (int64_t i = begin; i < end; ++i) dxs[i] = activation.Gradient(dys[i], knowns[i]);
    });
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void ForEachTile(Stream& stream, F range) const {
    WithActivation(activation_, [&](auto activation) {
      AsCpu(stream).ParallelFor(tiles_.count, [&](int tile, int) {
        range(activation, tiles_.begin(tile), tiles_.begin(tile) + tiles_.length(tile));
      });
    });
  }

  const Activation activation_;
  const Tiling tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ActivationOp>> CreateOnCpu(const ActivationShape& shape,
                                                          Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.features)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ActivationName(shape.activation), ": extents must be 1 to ", kMaxExtent, ": ",
                     shape.rows, " rows, ", shape.features, " features"));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ActivationOp> {
    return std::make_unique<CpuActivation<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
