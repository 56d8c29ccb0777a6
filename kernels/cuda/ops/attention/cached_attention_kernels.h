#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/rotary_scaling.h"

// The kernels of CachedAttentionOp (kernels/ops/cached_attention.h has the formulas, and the
// letters R, T, H, G, D). The positions are divided into parts, which are computed concurrently:
// each produces a maximum of scores, a sum of weights and a weighted sum of values, and a second
// kernel combines them in a fixed order. The boundaries of parts depend on the extents alone or,
// with a window, are counted from the first position that the first row sees.
namespace stagecoach::kernels {

// A thread of a block has a vector of a value, or an element of y.
inline constexpr int64_t kMaxCachedVectors = 128;
inline constexpr int64_t kMaxCachedHeadSize = 256;

struct CachedAttentionArguments {
  int64_t rows = 1;                            // R
  int64_t positions = 1;                       // T
  int64_t heads = 1;                           // H
  int64_t kv_heads = 1;                        // G
  int64_t head_size = 1;                       // D
  int64_t window = 0;                          // W; 0: none
  float scale = 1.0F;                          // a
  float score_cap = 0.0F, inverse_cap = 0.0F;  // c, 1 / c; 0: none
  // The binary logarithm of the base times -2 / R, with rotary positions: this times a pair's
  // number is the binary logarithm of the pair's angle at position 1.
  bool turns = false;
  double turn_exponent = 0.0;
  int64_t turned_pairs = 0;    // R/2; those behind them are not rotated
  RotaryScaling scaling = {};  // changes those angles
  const int64_t* first_position = nullptr;
  const void* qkv = nullptr;   // (R, H + 2 G, D)
  void* cache = nullptr;       // rotated keys (G, T, D), then values (G, T, D)
  void* y = nullptr;           // (R, H, D)
  float* workspace = nullptr;  // CachedAttentionWorkspaceBytes
  bool starts_early = false;   // whether the kernel for few rows is launched by LaunchEarly

  // Returns whether kernels are needed that know windows and caps.
  bool is_restricted() const { return window > 0 || score_cap > 0.0F; }
  // Returns the most positions that the rows of a call see.
  int64_t seen_positions() const {
    return window > 0 && window < positions - rows ? window + rows - 1 : positions;
  }
};

// The size depends on the type and the extents alone.
int64_t CachedAttentionWorkspaceBytes(ElementType type, const CachedAttentionArguments& arguments);

// Pre-condition: D is at most kMaxCachedHeadSize and kMaxCachedVectors vectors, which are of one
// element unless D is a multiple of kVectorWidth; `qkv` and `cache` are multiples of 16, so that
// bits do not depend on their addresses.
cudaError_t LaunchCachedAttention(cudaStream_t stream, ElementType type,
                                  const CachedAttentionArguments& arguments);

// ---- The parts of the implementation.

// Describes how positions are divided.
struct CachedAttentionParts {
  int queries = 1;          // of a kv head that a block has
  int64_t query_tiles = 1;  // blocks that share a kv head's queries
  int64_t positions = 1;    // of a part
  int64_t count = 1;        // parts that rows of one call can see
};

// The kernel for few rows on tensor cores (cached_attention_tiled.cu), whose parts are larger. If
// there is one part, it computes y itself, without a workspace.
bool FitsCachedAttentionTiles(ElementType type, const CachedAttentionArguments& arguments);
CachedAttentionParts CachedAttentionTileParts(const CachedAttentionArguments& arguments);
cudaError_t LaunchCachedAttentionTiles(cudaStream_t stream,
                                       const CachedAttentionArguments& arguments,
                                       const CachedAttentionParts& parts);

// Adds up the parts of each query, in a fixed order, and writes y.
cudaError_t LaunchCachedAttentionSum(cudaStream_t stream, ElementType type,
                                     const CachedAttentionArguments& arguments,
                                     const CachedAttentionParts& parts);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_KERNELS_H_
