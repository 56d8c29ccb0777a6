#include "kernels/ops/image_norm.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/lane_sum.h"

namespace stagecoach::kernels {
namespace {

// A plane is one channel of one sample; a set has several.
//
// Names of extents as in kernels/ops/image_norm.h. T: of activations, gamma and beta.
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

  absl::Status Forward(Stream& stream, const ImageNormTensors& tensors,
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
      ApplyToSet(s, tensors);
    });
    return absl::OkStatus();
  }

  absl::Status Apply(Stream& stream, const ImageNormTensors& tensors) override {
    ForEachSet(stream, [&](int64_t s) { ApplyToSet(s, tensors); });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                             const Tensor& dx, std::byte* /*workspace*/) override {
    const Tensor& x = tensors.x;
    const T* const gamma = Elements<T>(tensors.gamma);
    ForEachSet(stream, [&](int64_t s) {
      const float m = tensors.mean.f32()[s];
      const float rstd = RstdOf(tensors.variance, s);
      float sum = 0.0F, sum_xhat = 0.0F;  // of g and of g xhat
      ForEachPlane(s, [&](int64_t plane, int64_t c) {
        const PlaneSums sums = SumsOf(plane, dy, x, m, rstd);
        sum += gamma[c] * sums.dy;
        sum_xhat += gamma[c] * sums.dy_xhat;
      });
      const float mean_g = sum / set_size_;
      const float mean_g_xhat = sum_xhat / set_size_;
      ForEachPlane(s, [&](int64_t plane, int64_t c) {
        const float g = gamma[c];
        const T* const xp = Elements<T>(x) + plane * A_;
        const T* const dyp = Elements<T>(dy) + plane * A_;
        T* const dxp = Elements<T>(dx) + plane * A_;
        for (int64_t i = 0; i < A_; ++i) {
          const float xhat = (xp[i] - m) * rstd;
          dxp[i] = rstd * (dyp[i] * g - mean_g - xhat * mean_g_xhat);
        }
      });
    });
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                              const Tensor& dgamma, const Tensor& dbeta, bool accumulate,
                              std::byte* /*workspace*/) override {
    AsCpu(stream).ParallelFor(static_cast<int>(C_), [&](int c, int) {
      PlaneSums total;
      for (int64_t n = 0; n < N_; ++n) {
        const int64_t s = SetOf(n, c);
        const PlaneSums sums =
            SumsOf(n * C_ + c, dy, tensors.x, tensors.mean.f32()[s], RstdOf(tensors.variance, s));
        total.dy += sums.dy;
        total.dy_xhat += sums.dy_xhat;
      }
      dgamma.f32()[c] = total.dy_xhat + (accumulate ? dgamma.f32()[c] : 0.0F);
      dbeta.f32()[c] = total.dy + (accumulate ? dbeta.f32()[c] : 0.0F);
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

  float RstdOf(const Tensor& variance, int64_t s) const {
    return 1.0F / std::sqrt(variance.f32()[s] + epsilon_);
  }

  int64_t SetOf(int64_t n, int64_t c) const {
    return groups_ == 0 ? c : n * groups_ + c / (C_ / groups_);
  }

  PlaneSums SumsOf(int64_t plane, const Tensor& dy, const Tensor& x, float mean, float rstd) const {
    const T* const xp = Elements<T>(x) + plane * A_;
    const T* const dyp = Elements<T>(dy) + plane * A_;
    return {.dy = LaneSum(A_, [&](int64_t i) -> float { return dyp[i]; }),
            .dy_xhat = LaneSum(A_, [&](int64_t i) { return dyp[i] * (xp[i] - mean) * rstd; })};
  }

  void ApplyToSet(int64_t s, const ImageNormTensors& tensors) const {
    const float m = tensors.mean.f32()[s];
    const float rstd = RstdOf(tensors.variance, s);
    ForEachPlane(s, [&](int64_t plane, int64_t c) {
      const float g = Elements<T>(tensors.gamma)[c];
      const float b = Elements<T>(tensors.beta)[c];
      const T* const xp = Elements<T>(tensors.x) + plane * A_;
      T* const yp = Elements<T>(tensors.y) + plane * A_;
      for (int64_t i = 0; i < A_; ++i) yp[i] = (xp[i] - m) * rstd * g + b;
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

// With the products by which elements are counted.
bool AreImageNormExtents(const ImageNormShape& shape) {
  return IsExtent(shape.samples) && IsExtent(shape.channels) && IsExtent(shape.area) &&
         IsExtent(shape.samples * shape.channels) && shape.groups >= 0 &&
         (shape.groups == 0 || shape.channels % shape.groups == 0) && shape.epsilon > 0.0F;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCpu(const ImageNormShape& shape,
                                                         Device& device) {
  if (!AreImageNormExtents(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("image norm: extents must be 1 to ", kMaxExtent,
                     ", groups divide the channels and epsilon be positive: ", shape.samples,
                     " samples, ", shape.channels, " channels of ", shape.area, " elements, ",
                     shape.groups, " groups, epsilon ", shape.epsilon));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<ImageNormOp> {
    return std::make_unique<CpuImageNorm<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
