#include "kernels/ops/image_norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/products/lane_sum.h"

namespace stagecoach::kernels {
namespace {

// Returns a b + c, rounded once on processors that can do that.
inline float MultiplyAdd(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// A plane is one channel of one sample; a set has several.
//
// Names of extents are those of kernels/ops/image_norm.h. T is the type of activations, gamma and
// beta.
template <typename T>
class CpuImageNorm final : public ImageNormOp {
 public:
  explicit CpuImageNorm(const ImageNormShape& shape)
      : N_(shape.samples),
        C_(shape.channels),
        A_(shape.area),
        groups_(shape.groups),
        sets_(shape.sets()),
        planes_(N_ * C_ / sets_),
        epsilon_(shape.epsilon),
        set_size_(static_cast<float>(shape.set_size())) {}

  int64_t workspace_bytes() const override { return 0; }

  absl::Status Forward(Stream& stream, const ImageNormTensors& tensors, const ImageNormTail& tail,
                       std::byte* /*workspace*/) override {
    const Tensor& x = tensors.x;
    ForEachSet(stream, [&](int64_t s) {
      float sum = 0.0F;
      ForEachPlane(s, [&](int64_t plane, int64_t) {
        const T* const xp = Elements<T>(x) + plane * A_;
        sum += LaneSum(A_, [&](int64_t i) -> float { return xp[i]; });
      });
      const float m = sum / set_size_;
      float squares = 0.0F;
      ForEachPlane(s, [&](int64_t plane, int64_t) {
        const T* const xp = Elements<T>(x) + plane * A_;
        squares += LaneSum(A_, [&](int64_t i) { return (xp[i] - m) * (xp[i] - m); });
      });
      tensors.mean.f32()[s] = m;
      tensors.variance.f32()[s] = squares / set_size_;
      ApplyToSet(s, tensors, tail);
    });
    return absl::OkStatus();
  }

  absl::Status Apply(Stream& stream, const ImageNormTensors& tensors,
                     const ImageNormTail& tail) override {
    ForEachSet(stream, [&](int64_t s) { ApplyToSet(s, tensors, tail); });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                             const ImageNormTailGradient& tail, const Tensor& dx,
                             std::byte* /*workspace*/) override {
    WithMask(tail, [&](auto mask) {
      constexpr Mask kMask = decltype(mask)::value;
      ForEachSet(stream, [&](int64_t s) { BackwardInput<kMask>(s, dy, tensors, tail, dx); });
    });
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                              const ImageNormTailGradient& tail, const Tensor& dgamma,
                              const Tensor& dbeta, bool accumulate,
                              std::byte* /*workspace*/) override {
    WithMask(tail, [&](auto mask) {
      constexpr Mask kMask = decltype(mask)::value;
      AsCpu(stream).ParallelFor(static_cast<int>(C_), [&](int c, int) {
        PlaneSums total;
        for (int64_t n = 0; n < N_; ++n) {
          const Norm norm(*this, tensors, SetOf(n, c), c);
          const PlaneSums sums =
              SumsOf(Gradient<kMask>(dy, tensors, tail, norm, (n * C_ + c) * A_));
          total.dy += sums.dy;
          total.dy_xhat += sums.dy_xhat;
        }
        dgamma.f32()[c] = total.dy_xhat + (accumulate ? dgamma.f32()[c] : 0.0F);
        dbeta.f32()[c] = total.dy + (accumulate ? dbeta.f32()[c] : 0.0F);
      });
    });
    return absl::OkStatus();
  }

  absl::Status Collect(Stream& /*stream*/, const Tensor& mean, const Tensor& variance,
                       const Tensor& to_mean, const Tensor& to_variance, bool accumulate) override {
    const float unbiased = set_size_ / (set_size_ - 1.0F);
    for (int64_t s = 0; s < sets_; ++s) {
      to_mean.f32()[s] = mean.f32()[s] + (accumulate ? to_mean.f32()[s] : 0.0F);
      to_variance.f32()[s] =
          variance.f32()[s] * unbiased + (accumulate ? to_variance.f32()[s] : 0.0F);
    }
    return absl::OkStatus();
  }

 private:
  struct PlaneSums {
    float dy = 0.0F, dy_xhat = 0.0F;
  };

  // The ReLU through which dy came: whether it passes is known from y, or from the norm, which is
  // recomputed.
  enum class Mask : uint8_t { kNone, kOfX, kOfY };
  template <typename Use>
  static void WithMask(const ImageNormTailGradient& tail, Use use) {
    if (!tail.has_relu) {
      use(std::integral_constant<Mask, Mask::kNone>());
    } else if (tail.y.empty()) {
      use(std::integral_constant<Mask, Mask::kOfX>());
    } else {
      use(std::integral_constant<Mask, Mask::kOfY>());
    }
  }

  // The normalization of a channel of a set.
  struct Norm {
    float mean, rstd;
    float gamma, beta = 0.0F;

    Norm(const CpuImageNorm& op, const ImageNormTensors& tensors, int64_t s, int64_t c)
        : mean(tensors.mean.f32()[s]),
          rstd(1.0F / std::sqrt(tensors.variance.f32()[s] + op.epsilon_)),
          gamma(Elements<T>(tensors.gamma)[c]) {
      if (!tensors.beta.empty()) beta = Elements<T>(tensors.beta)[c];
    }

    // The backward pass recomputes it in another loop: the compiler must not choose how it is
    // rounded.
    float Of(float x) const { return MultiplyAdd((x - mean) * rstd, gamma, beta); }
  };

  // The part of dy that passes a plane's mask.
  template <Mask kMask>
  struct Gradient {
    const T* dy;
    const T* x;
    const T* y;  // of the tail
    Norm norm;

    // `offset` is that of the plane.
    Gradient(const Tensor& dy_tensor, const ImageNormTensors& tensors,
             const ImageNormTailGradient& tail, const Norm& of_plane, int64_t offset)
        : dy(Elements<T>(dy_tensor) + offset),
          x(Elements<T>(tensors.x) + offset),
          y(kMask == Mask::kOfY ? Elements<T>(tail.y) + offset : nullptr),
          norm(of_plane) {}

    float At(int64_t i) const {
      if constexpr (kMask == Mask::kNone) return dy[i];
      float known = 0.0F;
      if constexpr (kMask == Mask::kOfX) known = T(norm.Of(x[i]));
      if constexpr (kMask == Mask::kOfY) known = y[i];
      return known > 0.0F ? static_cast<float>(dy[i]) : 0.0F;
    }
  };

  template <Mask kMask>
  void BackwardInput(int64_t s, const Tensor& dy, const ImageNormTensors& tensors,
                     const ImageNormTailGradient& tail, const Tensor& dx) const {
    const auto gradient = [&](int64_t plane, int64_t c) {
      return Gradient<kMask>(dy, tensors, tail, Norm(*this, tensors, s, c), plane * A_);
    };
    float sum = 0.0F, sum_xhat = 0.0F;  // of g and of g xhat
    ForEachPlane(s, [&](int64_t plane, int64_t c) {
      const Gradient<kMask> dz = gradient(plane, c);
      const PlaneSums sums = SumsOf(dz);
      sum += dz.norm.gamma * sums.dy;
      sum_xhat += dz.norm.gamma * sums.dy_xhat;
    });
    const float mean_g = sum / set_size_;
    const float mean_g_xhat = sum_xhat / set_size_;
    ForEachPlane(s, [&](int64_t plane, int64_t c) {
      const Gradient<kMask> dz = gradient(plane, c);
      const Norm norm = dz.norm;
      const T* const xp = dz.x;
      T* const dxp = Elements<T>(dx) + plane * A_;
      if (kMask != Mask::kNone && !tail.dz.empty()) {
        T* const dzp = Elements<T>(tail.dz) + plane * A_;
        for (int64_t i = 0; i < A_; ++i) dzp[i] = dz.At(i);
      }
      for (int64_t i = 0; i < A_; ++i) {
        const float xhat = (xp[i] - norm.mean) * norm.rstd;
        dxp[i] = norm.rstd * (dz.At(i) * norm.gamma - mean_g - xhat * mean_g_xhat);
      }
    });
  }

  int64_t SetOf(int64_t n, int64_t c) const {
    return groups_ == 0 ? c : n * groups_ + c / (C_ / groups_);
  }

  template <Mask kMask>
  PlaneSums SumsOf(const Gradient<kMask>& dz) const {
    const T* const xp = dz.x;
    const float mean = dz.norm.mean, rstd = dz.norm.rstd;
    return {.dy = LaneSum(A_, [&](int64_t i) -> float { return dz.At(i); }),
            .dy_xhat = LaneSum(A_, [&](int64_t i) { return dz.At(i) * (xp[i] - mean) * rstd; })};
  }

  void ApplyToSet(int64_t s, const ImageNormTensors& tensors, const ImageNormTail& tail) const {
    ForEachPlane(s, [&](int64_t plane, int64_t c) {
      const Norm norm(*this, tensors, s, c);
      const T* const xp = Elements<T>(tensors.x) + plane * A_;
      T* const yp = Elements<T>(tensors.y) + plane * A_;
      // Each operation rounds its result.
      const auto relu = [&](float z) { return tail.has_relu && z < 0.0F ? 0.0F : z; };
      if (!tail.addend.empty()) {
        const T* const addend = Elements<T>(tail.addend) + plane * A_;
        for (int64_t i = 0; i < A_; ++i) yp[i] = relu(T(norm.Of(xp[i])) + addend[i]);
      } else if (tail.has_relu) {
        for (int64_t i = 0; i < A_; ++i) yp[i] = relu(T(norm.Of(xp[i])));
      } else {
        for (int64_t i = 0; i < A_; ++i) yp[i] = norm.Of(xp[i]);
      }
    });
  }

  template <typename F>
  void ForEachSet(Stream& stream, F set) const {
    AsCpu(stream).ParallelFor(static_cast<int>(sets_), [&](int s, int) { set(s); });
  }

  // Calls each(plane, channel) for the planes of a set, in order.
  template <typename F>
  void ForEachPlane(int64_t s, F each) const {
    if (groups_ == 0) {
      for (int64_t n = 0; n < N_; ++n) each(n * C_ + s, s);
      return;
    }
    const int64_t first_channel = s % groups_ * planes_;
    for (int64_t j = 0; j < planes_; ++j) {
      each(s / groups_ * C_ + first_channel + j, first_channel + j);
    }
  }

  const int64_t N_, C_, A_, groups_, sets_;
  const int64_t planes_;  // of a set
  const float epsilon_;
  const float set_size_;
};

// Checks also the products that count elements.
bool AreImageNormExtents(const ImageNormShape& shape) {
  return IsExtent(shape.samples) && IsExtent(shape.channels) && IsExtent(shape.area) &&
         IsExtent(shape.samples * shape.channels) && shape.groups >= 0 &&
         (shape.groups == 0 || shape.channels % shape.groups == 0) && shape.epsilon > 0.0F;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCpu(const ImageNormShape& shape,
                                                         Device& device) {
  if (!AreImageNormExtents(shape)) {
    return ImageNormRefusal(shape, kMaxExtent);
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ImageNormOp> {
    return std::make_unique<CpuImageNorm<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
