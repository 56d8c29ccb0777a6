#include "kernels/ops/cached_attention.h"

#include "base/status_macros.h"
#include "kernels/ops/attention.h"

namespace stagecoach::kernels {

absl::Status CheckCachedAttention(const CachedAttentionShape& shape, int64_t max_extent) {
  for (const int64_t positions : {shape.rows, shape.positions, shape.sequences}) {
    RETURN_IF_ERROR(CheckAttention({.positions = positions,
                                    .heads = shape.heads,
                                    .kv_heads = shape.kv_heads,
                                    .head_size = shape.head_size,
                                    .rotary_base = shape.rotary_base,
                                    .rotary_scaling = shape.rotary_scaling,
                                    .rotary_size = shape.rotary_size,
                                    .window = shape.window,
                                    .scale = shape.scale,
                                    .score_cap = shape.score_cap},
                                   max_extent));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
