#ifndef STAGECOACH_KERNELS_CUDA_CUDNN_ATTENTION_GRAPH_H_
#define STAGECOACH_KERNELS_CUDA_CUDNN_ATTENTION_GRAPH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/graph.h"

// Causal attention as a graph (kernels/ops/attention.h has the formulas and the letters). cuDNN
// recognizes it by its operations, and has kernels for the whole. The operations are those of
// NVIDIA's cudnn-frontend 1.x: engines are found for these and for no equivalent ones.
namespace stagecoach::kernels::cudnn {

// All samples and heads, or a part of them. Strides are the elements between two positions.
struct AttentionExtents {
  int64_t samples = 1;        // B
  int64_t positions = 1;      // T
  int64_t heads = 1;          // H
  int64_t kv_heads = 1;       // G
  int64_t head_size = 1;      // D
  int64_t query_stride = 1;   // of q and k
  int64_t value_stride = 1;   // of v, dq, dk and dv
  int64_t output_stride = 1;  // of y and dy
};

// The operands. Tensors of positions and heads are bfloat16; statistics and row sums (B, H, T) are
// float32.
enum AttentionOperand : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOutputs,
  kStatistics,
  kScale,          // scalar: 1 / sqrt(D)
  kMinusInfinity,  // scalar
  // The operands below are for backward only.
  kOutputGradients,
  kQueryGradients,
  kKeyGradients,
  kValueGradients,
  kRowSums,  // dy y, written
  kOne,      // scalar
};

// Makes a graph that computes y and statistics from q, k and v.
absl::StatusOr<Graph> AttentionForwardGraph(const GpuHandle& handle,
                                            const AttentionExtents& extents);

// Makes a graph that computes dq, dk and dv from all operands above and dy. It uses no atomics: the
// workspace of its plans holds the gradients of the scores, (B, H, T, T) in bfloat16 with T rounded
// up to at most a multiple of 128, and, if heads of queries share keys, dk and dv of each of them.
absl::StatusOr<Graph> AttentionBackwardGraph(const GpuHandle& handle,
                                             const AttentionExtents& extents);

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_ATTENTION_GRAPH_H_
