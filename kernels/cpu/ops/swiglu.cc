#include "kernels/ops/swiglu.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kRowTile = 16;

// Each gate is a type, for loops that are compiled for each.
struct SiluOfHalf {
  static float Gate(float a) { return SiluGate(a); }
  static float Derivative(float a, float gate) { return SiluDerivative(a, gate); }
};
struct GeluOfHalf {
  static float Gate(float a) { return LogisticGate(FastExp(GeluExponent(a))); }
  static float Derivative(float a, float gate) { return GeluDerivative(a, gate); }
};

// Names of extents are those of kernels/ops/swiglu.h.
template <typename T, typename Half>
class CpuSwiGlu final : public SwiGluOp {
 public:
  explicit CpuSwiGlu(const SwiGluShape& shape)
      : R_(shape.rows), C_(shape.features), row_tiles_(R_, kRowTile) {}

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) override {
    ForEachRow(stream, [&](int64_t r) {
      const T* const a = Elements<T>(x) + r * 2 * C_;
      const T* const b = a + C_;
      T* const yr = Elements<T>(y) + r * C_;
      for (int64_t c = 0; c < C_; ++c) yr[c] = a[c] * Half::Gate(a[c]) * b[c];
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                             const Tensor& dx) override {
    ForEachRow(stream, [&](int64_t r) {
      const T* const a = Elements<T>(x) + r * 2 * C_;
      const T* const b = a + C_;
      const T* const dyr = Elements<T>(dy) + r * C_;
      T* const da = Elements<T>(dx) + r * 2 * C_;
      T* const db = da + C_;
      for (int64_t c = 0; c < C_; ++c) {
        const float gate = Half::Gate(a[c]);
        da[c] = dyr[c] * b[c] * Half::Derivative(a[c], gate);
        db[c] = dyr[c] * a[c] * gate;
      }
    });
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void ForEachRow(Stream& stream, F row) const {
    AsCpu(stream).ParallelFor(row_tiles_.count, [&](int tile, int) {
      const int64_t begin = row_tiles_.begin(tile);
      for (int64_t r = begin; r < begin + row_tiles_.length(tile); ++r) row(r);
    });
  }

  const int64_t R_, C_;
  const Tiling row_tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCpu(const SwiGluShape& shape, Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.features)) {
    return absl::InvalidArgumentError(absl::StrCat("swiglu: extents must be 1 to ", kMaxExtent,
                                                   ": ", shape.rows, " rows, ", shape.features,
                                                   " features"));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<SwiGluOp> {
    if (shape.gate == GluGate::kGelu) return std::make_unique<CpuSwiGlu<T, GeluOfHalf>>(shape);
    return std::make_unique<CpuSwiGlu<T, SiluOfHalf>>(shape);
  });
}

}  // namespace stagecoach::kernels
