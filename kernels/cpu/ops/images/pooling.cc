#include "kernels/ops/pooling.h"

#include <algorithm>
#include <memory>

#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kPlaneTile = 16;

// Names of extents are those of kernels/ops/pooling.h. T is the type of activations.
template <typename T>
class CpuPooling final : public PoolingOp {
 public:
  CpuPooling(const PoolingShape& shape, int slots)
      : shape_(shape),
        slots_(slots),
        H_(shape.height),
        W_(shape.width),
        P_(shape.output_height()),
        Q_(shape.output_width()),
        share_(1.0F / static_cast<float>(shape.kernel_height * shape.kernel_width)),
        plane_tiles_(shape.samples * shape.channels, kPlaneTile) {}

  int64_t workspace_bytes() const override { return kIsFloat<T> ? 0 : slots_ * PlaneBytes(); }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) override {
    ForEachPlane(stream, [&](int64_t n, int) {
      const T* const from = Elements<T>(x) + n * H_ * W_;
      T* const to = Elements<T>(y) + n * P_ * Q_;
      ForEachWindow([&](int64_t out, const Window& window) {
        if (shape_.kind == Pooling::kMax) {
          to[out] = from[Largest(from, window)];
          return;
        }
        float sum = 0.0F;
        for (int64_t h = window.top; h < window.bottom; ++h) {
          for (int64_t w = window.left; w < window.right; ++w) sum += from[h * W_ + w];
        }
        to[out] = sum * share_;
      });
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& dx,
                             std::byte* workspace) override {
    ForEachPlane(stream, [&](int64_t n, int slot) {
      const T* const from = Elements<T>(dy) + n * P_ * Q_;
      T* const to = Elements<T>(dx) + n * H_ * W_;
      // An element may be in several windows: their sum is rounded once.
      float* sums = nullptr;
      if constexpr (kIsFloat<T>) {
        sums = to;
      } else {
        sums = reinterpret_cast<float*>(workspace + slot * PlaneBytes());
      }
      std::fill_n(sums, H_ * W_, 0.0F);
      ForEachWindow([&](int64_t out, const Window& window) {
        const float gradient = from[out];
        if (shape_.kind == Pooling::kMax) {
          sums[Largest(Elements<T>(x) + n * H_ * W_, window)] += gradient;
          return;
        }
        for (int64_t h = window.top; h < window.bottom; ++h) {
          for (int64_t w = window.left; w < window.right; ++w) {
            sums[h * W_ + w] += gradient * share_;
          }
        }
      });
      if constexpr (!kIsFloat<T>) Convert(sums, H_ * W_, to);
    });
    return absl::OkStatus();
  }

 private:
  // The part of a window within the plane.
  struct Window {
    int64_t top, bottom, left, right;
  };

  // Returns the place in a plane of the first of the largest elements, or of the first NaN.
  int64_t Largest(const T* plane, const Window& window) const {
    int64_t largest = window.top * W_ + window.left;
    for (int64_t h = window.top; h < window.bottom; ++h) {
      for (int64_t i = h * W_ + window.left; i < h * W_ + window.right; ++i) {
        if (std::isnan(static_cast<float>(plane[i]))) return i;
        if (plane[i] > plane[largest]) largest = i;
      }
    }
    return largest;
  }

  int64_t PlaneBytes() const { return H_ * W_ * SizeOf(DType::kFloat32); }

  // Calls each(plane, slot).
  template <typename F>
  void ForEachPlane(Stream& stream, F each) const {
    AsCpu(stream).ParallelFor(plane_tiles_.count, [&](int tile, int slot) {
      const int64_t begin = plane_tiles_.begin(tile);
      for (int64_t n = begin; n < begin + plane_tiles_.length(tile); ++n) each(n, slot);
    });
  }

  // Calls each(output, window) for the outputs of a plane, in order.
  template <typename F>
  void ForEachWindow(F each) const {
    for (int64_t p = 0; p < P_; ++p) {
      const int64_t top = p * shape_.stride - shape_.padding;
      for (int64_t q = 0; q < Q_; ++q) {
        const int64_t left = q * shape_.stride - shape_.padding;
        each(p * Q_ + q,
             Window{std::max<int64_t>(top, 0), std::min(top + shape_.kernel_height, H_),
                    std::max<int64_t>(left, 0), std::min(left + shape_.kernel_width, W_)});
      }
    }
  }

  const PoolingShape shape_;
  const int slots_;
  const int64_t H_, W_, P_, Q_;
  const float share_;
  const Tiling plane_tiles_;
};

// Checks also the products that count elements.
bool ArePoolingExtents(const PoolingShape& shape) {
  return IsExtent(shape.samples) && IsExtent(shape.channels) &&
         IsExtent(shape.samples * shape.channels) && IsExtent(shape.height) &&
         IsExtent(shape.width) && IsExtent(shape.kernel_height) && IsExtent(shape.kernel_width) &&
         IsExtent(shape.stride) && IsExtent(shape.height * shape.width) && shape.padding >= 0 &&
         shape.padding <= shape.kernel_height / 2 && shape.padding <= shape.kernel_width / 2 &&
         shape.output_height() >= 1 && shape.output_width() >= 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PoolingOp>> CreateOnCpu(const PoolingShape& shape, Device& device) {
  if (!ArePoolingExtents(shape)) {
    return PoolingRefusal(shape, kMaxExtent);
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<PoolingOp> {
    return std::make_unique<CpuPooling<T>>(shape, AsCpu(device.stream()).threads());
  });
}

}  // namespace stagecoach::kernels
