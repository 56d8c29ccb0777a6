#include "kernels/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/status_macros.h"
#include "kernels/cpu/ops/attention_parts.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/lane_sum.h"
#include "kernels/cpu/ops/rotary.h"
#include "kernels/ops/attention.h"

namespace stagecoach::kernels {
namespace {

// Names of extents as in kernels/ops/attention.h. Element: of activations. The cache, in float, is
// keys (G, T, D), then values (G, T, D), so that a head reads both from the first to the last.
template <typename Element>
class CpuCachedAttention final : public CachedAttentionOp {
 public:
  CpuCachedAttention(const CachedAttentionShape& shape, int slots)
      : R_(shape.rows),
        T_(shape.positions),
        H_(shape.heads),
        G_(shape.kv_heads),
        D_(shape.head_size),
        slots_(slots),
        scale_(1.0F / std::sqrt(static_cast<float>(D_))) {
    if (shape.rotary_base > 0.0F) rotary_.emplace(T_, D_, shape.rotary_base);
  }

  int64_t cache_bytes() const override { return 2 * G_ * T_ * D_ * SizeOf(DType::kFloat32); }
  int64_t workspace_bytes() const override {
    return slots_ * SlotFloats() * SizeOf(DType::kFloat32);
  }

  absl::Status Forward(Stream& stream, const int64_t* first_position, const Tensor& qkv,
                       std::byte* cache, const Tensor& y, std::byte* workspace) override {
    const int64_t first = *first_position;
    const int64_t rows = std::clamp<int64_t>(T_ - first, 0, R_);
    float* const keys = reinterpret_cast<float*>(cache);
    float* const values = keys + G_ * T_ * D_;
    CpuStream& cpu = AsCpu(stream);
    cpu.ParallelFor(static_cast<int>(rows * G_), [&](int task, int) {
      const int64_t r = task / G_, g = task % G_;
      const int64_t place = (g * T_ + first + r) * D_;
      Load(first + r, 1.0F, Part(qkv, r, H_ + g), keys + place);
      Convert(Part(qkv, r, H_ + G_ + g), D_, values + place);
    });
    cpu.ParallelFor(static_cast<int>(rows * H_), [&](int task, int slot) {
      const int64_t r = task / H_, h = task % H_;
      const int64_t head = h / (H_ / G_) * T_ * D_;
      float* const scratch = reinterpret_cast<float*>(workspace) + slot * SlotFloats();
      Load(first + r, scale_, Part(qkv, r, h), scratch);
      Attend(first + r + 1, keys + head, values + head, scratch,
             Elements<Element>(y) + (r * H_ + h) * D_);
    });
    std::fill_n(Elements<Element>(y) + rows * H_ * D_, (R_ - rows) * H_ * D_, Element(0.0F));
    return absl::OkStatus();
  }

 private:
  // Of one thread: a query, its result and the score of each position.
  int64_t SlotFloats() const { return 2 * D_ + T_; }

  const Element* Part(const Tensor& qkv, int64_t r, int64_t part) const {
    return Elements<Element>(qkv) + (r * (H_ + 2 * G_) + part) * D_;
  }

  // to = scale * from, turned to the position.
  void Load(int64_t position, float scale, const Element* from, float* to) const {
    if (rotary_) {
      rotary_->Turn(position, scale, from, to);
    } else {
      for (int64_t d = 0; d < D_; ++d) to[d] = scale * from[d];
    }
  }

  // Of the first n positions. `scratch` begins with the query.
  void Attend(int64_t n, const float* keys, const float* values, float* scratch, Element* y) const {
    const float* const query = scratch;
    float* const sum = scratch + D_;
    float* const scores = sum + D_;
    for (int64_t u = 0; u < n; ++u) {
      const float* const key = keys + u * D_;
      scores[u] = LaneSum(D_, [&](int64_t d) { return query[d] * key[d]; });
    }
    const float largest = *std::max_element(scores, scores + n);
    for (int64_t u = 0; u < n; ++u) scores[u] = SoftmaxWeight(scores[u] - largest);
    const float share = 1.0F / LaneSum(n, [&](int64_t u) { return scores[u]; });
    std::fill_n(sum, D_, 0.0F);
    for (int64_t u = 0; u < n; ++u) {
      const float* const value = values + u * D_;
      const float weight = scores[u];
      for (int64_t d = 0; d < D_; ++d) sum[d] += weight * value[d];
    }
    for (int64_t d = 0; d < D_; ++d) y[d] = sum[d] * share;
  }

  const int64_t R_, T_, H_, G_, D_;
  const int slots_;
  const float scale_;
  std::optional<Rotary> rotary_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCpu(const CachedAttentionShape& shape,
                                                               Device& device) {
  RETURN_IF_ERROR(CheckCachedAttention(shape, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<CachedAttentionOp> {
    return std::make_unique<CpuCachedAttention<T>>(shape, AsCpu(device.stream()).threads());
  });
}

}  // namespace stagecoach::kernels
