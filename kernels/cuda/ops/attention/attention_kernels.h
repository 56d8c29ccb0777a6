#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_KERNELS_H_

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/element_type.h"
#include "kernels/rotary_scaling.h"

// The kernels of AttentionOp (kernels/ops/attention.h has the formulas, and the letters B, T, H, G,
// D). No kernel uses atomics, and the order of every sum depends on the extents alone.
namespace stagecoach::kernels {

// A tensor (B, T, heads, D) of the activation type whose positions are `stride` elements apart: a
// slice of packed queries, keys and values, or a separate matrix.
template <typename Pointer>
struct HeadsOf {
  Pointer data = nullptr;
  int64_t stride = 0;
};

// How products q k become exponents to the base 2: these are `exponent` times q k or, with a cap,
// times tanh(tanh_scale q k).
struct ScoreFactors {
  float scale = 1.0F;       // a
  float cap = 0.0F;         // c; 0: none
  float exponent = 1.0F;    // log2(e) times a or, with a cap, times c
  float tanh_scale = 0.0F;  // a / c
};
inline ScoreFactors FactorsOf(double scale, double cap) {
  constexpr double kLog2OfE = 1.4426950408889634;
  ScoreFactors factors = {.scale = static_cast<float>(scale), .cap = static_cast<float>(cap)};
  factors.exponent = static_cast<float>(kLog2OfE * (cap > 0.0 ? cap : scale));
  if (cap > 0.0) factors.tanh_scale = static_cast<float>(scale / cap);
  return factors;
}
inline double DefaultScale(int64_t head_size) {
  return 1.0 / std::sqrt(static_cast<double>(head_size));
}

struct AttentionArguments {
  int64_t samples = 1;    // B
  int64_t positions = 1;  // T
  int64_t heads = 1;      // H
  int64_t kv_heads = 1;   // G
  int64_t head_size = 1;  // D
  ScoreFactors factors;
  int window = 0;                      // W; 0: none
  const int32_t* documents = nullptr;  // (B, T); null: none

  // q and k are already rotated if there are rotary positions.
  HeadsOf<const void*> q, k, v;
  void* y = nullptr;            // (B, T, H, D); backward only reads it to compute `row_sums`
  float* statistics = nullptr;  // (B, H, T)

  // The members below are for backward only.
  const void* dy = nullptr;         // (B, T, H, D)
  const float* row_sums = nullptr;  // (B, H, T): dy_t y_t
  HeadsOf<void*> dq, dk, dv;
  // (T, D/2), with rotary positions: the cosine and the sine by which a pair was rotated, and by
  // which the gradients of q and k are rotated back. Null: no rotary positions.
  const float2* turns = nullptr;

  // Returns whether kernels are needed that know windows, documents and caps.
  bool is_restricted() const { return window > 0 || documents != nullptr || factors.cap > 0.0F; }
};

// Works for any T, D and number of heads in a group.
cudaError_t LaunchPlainAttentionForward(cudaStream_t stream, ElementType type,
                                        const AttentionArguments& arguments);
cudaError_t LaunchPlainAttentionBackward(cudaStream_t stream, ElementType type,
                                         const AttentionArguments& arguments);

// Computes row_sums from dy and y.
cudaError_t LaunchAttentionRowSums(cudaStream_t stream, ElementType type,
                                   const AttentionArguments& arguments, float* row_sums);

// Computes `turns` (T, D/2): the scaled cosine and sine of t times the scaled base^(-2i/R), or
// those of 0 from i = R/2 on.
struct RotaryArguments {
  int64_t positions = 1;    // T
  int64_t head_size = 2;    // D, even
  int64_t rotary_size = 2;  // R, even
  double log2_base = 0.0;   // log2 of the base
  RotaryScaling scaling = {};
  float2* turns = nullptr;
};
cudaError_t LaunchRotaryTurns(cudaStream_t stream, const RotaryArguments& arguments);

// Computes y (B, T, heads, D) from x, rotating each head by its position, or back. y may be x.
struct TurnArguments {
  int64_t samples = 1;    // B
  int64_t positions = 1;  // T
  int64_t heads = 1;
  int64_t head_size = 2;  // D
  const float2* turns = nullptr;
  HeadsOf<const void*> x;
  HeadsOf<void*> y;
  bool back = false;
};
cudaError_t LaunchTurn(cudaStream_t stream, ElementType type, const TurnArguments& arguments);

// The tiled kernels, which use tensor cores: for bfloat16, if all addresses are multiples of 16,
// all strides multiples of 8, and the head size is one of those below. Weights, and the gradients
// of scores, are rounded to bfloat16 before they are multiplied.
bool FitsAttentionTiles(ElementType type, const AttentionArguments& arguments);

// One kernel as compiled. A block has `rows` queries (for the gradients of keys and values, as many
// keys), and walks over the others `step` at a time.
struct AttentionTile {
  int head_size, rows, step, warps;
  int stages = 0;  // of a kernel by warpgroups, the steps in shared memory at a time
  unsigned shared_bytes;
  cudaError_t (*launch)(cudaStream_t stream, const AttentionArguments& arguments);
};
// All compiled kernels. The first one of each head size is used if nothing is measured: every GPU
// from compute capability 8.0 on has enough shared memory for it (99 KiB). No two of a head size
// have the same numbers.
std::span<const AttentionTile> AttentionForwardTiles();
std::span<const AttentionTile> AttentionKeyTiles();    // dk, dv
std::span<const AttentionTile> AttentionQueryTiles();  // dq
// Those whose products are computed by warpgroups (kernels/cuda/device/warpgroup.cuh): for GPUs of
// compute capability 9.0, and arguments that are not restricted. Empty if the build lacks them.
std::span<const AttentionTile> AttentionKeyTilesOfWarpgroups();
std::span<const AttentionTile> AttentionQueryTilesOfWarpgroups();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_KERNELS_H_
