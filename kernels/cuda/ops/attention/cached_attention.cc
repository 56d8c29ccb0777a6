#include "kernels/ops/cached_attention.h"

#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/attention/cached_attention_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/ops/attention.h"

namespace stagecoach::kernels {
namespace {

class CudaCachedAttention final : public CachedAttentionOp {
 public:
  CudaCachedAttention(const CachedAttentionShape& shape, DType type, bool starts_early)
      : type_(type),
        arguments_({.rows = shape.rows,
                    .positions = shape.positions,
                    .heads = shape.heads,
                    .kv_heads = shape.kv_heads,
                    .head_size = shape.head_size,
                    // All earlier positions are within a larger one.
                    .window = shape.window < shape.positions ? shape.window : 0,
                    .scale = shape.scale > 0.0F
                                 ? shape.scale
                                 : 1.0F / std::sqrt(static_cast<float>(shape.head_size)),
                    .score_cap = shape.score_cap,
                    .inverse_cap = shape.score_cap > 0.0F ? 1.0F / shape.score_cap : 0.0F,
                    .turns = shape.rotary_base > 0.0F,
                    .scaling = shape.rotary_scaling,
                    .starts_early = starts_early}) {
    if (!arguments_.turns) return;
    const int64_t turned = shape.rotary_size > 0 ? shape.rotary_size : shape.head_size;
    arguments_.turned_pairs = turned / 2;
    arguments_.turn_exponent =
        std::log2(static_cast<double>(shape.rotary_base)) * -2.0 / static_cast<double>(turned);
  }

  int64_t cache_bytes() const override {
    return 2 * arguments_.kv_heads * arguments_.positions * arguments_.head_size * SizeOf(type_);
  }
  int64_t workspace_bytes() const override {
    return CachedAttentionWorkspaceBytes(ElementTypeOf(type_), arguments_);
  }

  absl::Status Forward(Stream& stream, const CachedRow* rows, const Tensor& qkv, std::byte* cache,
                       const Tensor& y, std::byte* workspace) override {
    CachedAttentionArguments arguments = arguments_;
    arguments.first_position = &rows->position;
    arguments.qkv = qkv.data;
    arguments.cache = cache;
    arguments.y = y.data;
    arguments.workspace = reinterpret_cast<float*>(workspace);
    return CudaStatus(
        LaunchCachedAttention(AsCuda(stream).compute(), ElementTypeOf(type_), arguments),
        "LaunchCachedAttention");
  }

 private:
  const DType type_;
  CachedAttentionArguments arguments_;
};

absl::Status CheckShape(const CachedAttentionShape& shape, DType type) {
  RETURN_IF_ERROR(CheckCachedAttention(shape, kMaxCudaExtent));
  if (shape.sequences > 1 || shape.rows_are_sequences) {
    return absl::UnimplementedError(
        "attention with a cache has no CUDA kernel for several sequences");
  }
  // A grid has at most this many blocks in its second and third direction.
  constexpr int64_t kMaxBlocks = 65535;
  if (shape.rows * shape.heads > kMaxBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention with a cache: heads times rows must be at most ", kMaxBlocks, ": ",
                     shape.heads, " heads, ", shape.rows, " rows"));
  }
  const int64_t width = 16 / SizeOf(type);
  const bool has_vectors = shape.head_size % width == 0;
  if (shape.head_size > (has_vectors ? kMaxCachedHeadSize : kMaxCachedVectors)) {
    return absl::UnimplementedError(
        absl::StrCat("attention with a cache has no CUDA kernel for heads of ", shape.head_size,
                     " numbers, only up to ", kMaxCachedHeadSize, ", and above ", kMaxCachedVectors,
                     " for multiples of ", width));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCuda(const CachedAttentionShape& shape,
                                                                Device& device) {
  RETURN_IF_ERROR(CheckShape(shape, device.activation_type()));
  return std::unique_ptr<CachedAttentionOp>(std::make_unique<CudaCachedAttention>(
      shape, device.activation_type(), TunerOf(device).starts_kernels_early()));
}

}  // namespace stagecoach::kernels
