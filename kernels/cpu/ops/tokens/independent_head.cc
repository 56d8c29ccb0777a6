#include "kernels/cpu/ops/tokens/independent_head.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/few_rows.h"
#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/ops/tokens/head_softmax.h"

namespace stagecoach::kernels {
namespace {

// Classes of a tile, of which a thread has one at a time.
constexpr int64_t kIndependentClassTile = 576;

// Names of extents as in kernels/ops/head.h. Logits have a row for each class, as in head.cc.
template <typename T>
class CpuIndependentHead final : public HeadOp {
 public:
  CpuIndependentHead(const HeadShape& shape, int slots)
      : R_(shape.rows),
        F_(shape.features),
        C_(shape.classes),
        columns_((R_ + 3) / 4 * 4),
        cap_(shape.logit_cap),
        slots_(slots),
        class_tiles_(C_, kIndependentClassTile) {}

  int64_t workspace_bytes() const override {
    return (C_ * columns_ + F_ * columns_ + slots_ * WeightsTimesRowsScratch<T>(F_)) *
           SizeOf(DType::kFloat32);
  }
  int64_t statistics_bytes() const override { return 0; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& /*labels*/,
                       const LossTerms* /*terms*/, const Tensor& logits, const Tensor& result,
                       std::byte* workspace) override {
    if (!result.empty()) return HasNoLoss();
    if (logits.empty()) return absl::OkStatus();
    const float* const z = Logits(stream, x, w, workspace);
    Transpose(z, columns_, C_, std::min(R_, logits.elements() / C_), Elements<T>(logits), C_);
    return absl::OkStatus();
  }

  absl::Status Choose(Stream& stream, const Tensor& x, const Tensor& w, const HeadChoice& choice,
                      std::byte* workspace) override {
    ChooseLargest<T>(Logits(stream, x, w, workspace), columns_, choice);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& /*stream*/, const Tensor& /*x*/, const Tensor& /*w*/,
                             const Tensor& /*labels*/, const LossTerms* /*terms*/,
                             const Tensor& /*result*/, const Tensor& /*dx*/,
                             std::byte* /*statistics*/, std::byte* /*workspace*/) override {
    return HasNoLoss();
  }
  absl::Status BackwardWeight(Stream& /*stream*/, const Tensor& /*x*/, const Tensor& /*w*/,
                              const std::byte* /*statistics*/, const Tensor& /*dw*/,
                              bool /*accumulate*/, std::byte* /*workspace*/) override {
    return HasNoLoss();
  }
  absl::Status Backward(Stream& /*stream*/, const Tensor& /*x*/, const Tensor& /*w*/,
                        const Tensor& /*labels*/, const LossTerms* /*terms*/,
                        const Tensor& /*result*/, const Tensor& /*dx*/, const Tensor& /*dw*/,
                        bool /*accumulate*/, std::byte* /*workspace*/) override {
    return HasNoLoss();
  }

 private:
  static absl::Status HasNoLoss() {
    return absl::UnimplementedError("a head of independent rows has logits alone");
  }

  // (C, columns_): of each row a column.
  const float* Logits(Stream& stream, const Tensor& x, const Tensor& w,
                      std::byte* workspace) const {
    float* const z = reinterpret_cast<float*>(workspace);
    float* const transposed = z + C_ * columns_;
    float* const scratch = transposed + F_ * columns_;
    std::fill_n(transposed, F_ * columns_, 0.0F);
    Transpose(Elements<T>(x), F_, R_, F_, transposed, columns_);
    AsCpu(stream).ParallelFor(class_tiles_.count, [&](int tile, int slot) {
      const int64_t c = class_tiles_.begin(tile);
      WeightsTimesRows(class_tiles_.length(tile), columns_, F_, Elements<T>(w) + c * F_, transposed,
                       z + c * columns_, columns_, scratch + slot * WeightsTimesRowsScratch<T>(F_));
      if (cap_ == 0.0F) return;
      const int64_t end = (c + class_tiles_.length(tile)) * columns_;
      for (int64_t i = c * columns_; i < end; ++i) z[i] = Capped(z[i], cap_);
    });
    return z;
  }

  const int64_t R_, F_, C_;
  const int64_t columns_;  // R, in whole vectors of 4
  const float cap_;
  const int slots_;
  const Tiling class_tiles_;
};

}  // namespace

std::unique_ptr<HeadOp> CreateIndependentHead(const HeadShape& shape, Device& device) {
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<HeadOp> {
    return std::make_unique<CpuIndependentHead<T>>(shape, AsCpu(device.stream()).threads());
  });
}

}  // namespace stagecoach::kernels
