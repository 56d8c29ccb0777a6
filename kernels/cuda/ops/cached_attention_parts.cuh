#ifndef STAGECOACH_KERNELS_CUDA_OPS_CACHED_ATTENTION_PARTS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_CACHED_ATTENTION_PARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/cached_attention_kernels.h"

// What the two kernels of attention with a cache share: how positions are divided, and what the
// first leaves for the second.
namespace stagecoach::kernels {

struct CachedAttentionParts {
  int queries = 1;          // of a kv head, that a block takes
  int64_t query_tiles = 1;  // blocks that share a kv head's queries
  int64_t positions = 1;    // of a part
  int64_t count = 1;        // parts
};

// What a part gives for a query: its largest score, and the sum of the weights that are relative to
// that.
struct PartStatistics {
  float largest, sum;
};

// The workspace has the statistics (R, H, parts), then weighted sums of values (R, H, parts, D).
struct PartResults {
  __device__ PartResults(const CachedAttentionArguments& a, int64_t parts)
      : statistics(reinterpret_cast<PartStatistics*>(a.workspace)),
        sums(a.workspace + 2 * a.rows * a.heads * parts) {}
  PartStatistics* statistics;
  float* sums;
};

// Adds up the parts of each query, in a fixed order, and writes y.
cudaError_t LaunchCachedAttentionSum(cudaStream_t stream, ElementType type,
                                     const CachedAttentionArguments& arguments,
                                     const CachedAttentionParts& parts);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_CACHED_ATTENTION_PARTS_CUH_
