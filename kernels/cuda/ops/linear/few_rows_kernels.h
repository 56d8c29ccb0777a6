#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/activation.h"
#include "kernels/cuda/device/element_type.h"

// LinearOp::Forward (kernels/ops/linear.h) for few rows, as in text generation: time is dominated
// by reading w once, and by the delay until all of it has been requested. One launch of these
// kernels replaces up to two launches of the library and another one for the bias.
//
// A block, or a cluster of blocks, has a strip of columns, and each of its warps a part of the
// inputs. Warps multiply on tensor cores, with w as the first factor: a lane needs only words of it
// that it loads itself, so that w bypasses shared memory. The sums of a block's warps are added up
// in their order, and then those of a cluster's blocks.
namespace stagecoach::kernels {

inline constexpr int64_t kFewRows = 8;

// The norm that computes x from its own input (kernels/ops/layer_norm.h), with the same bits.
struct InputNormArguments {
  const void* gamma = nullptr;  // (I); null: there is no norm
  const void* beta = nullptr;   // (I), if `centers`
  float epsilon = 0.0F;
  bool centers = true;  // false: RMSNorm
};
// All are bfloat16, and w, x, gamma and beta at multiples of 16.
struct FewRowsArguments {
  int64_t rows = 1;            // R, at most kFewRows
  int64_t inputs = 1;          // I, a multiple of 8
  int64_t outputs = 1;         // O, a multiple of 8
  const void* x = nullptr;     // (R, I), or with a norm, the input of that
  const void* w = nullptr;     // (I, O)
  const void* bias = nullptr;  // (O); null: 0
  void* z = nullptr;           // (R, O); null: not written
  void* y = nullptr;           // (R, O), from z before rounding
  InputNormArguments norm;
  // What follows, in this order: y += addend, (R, O), which may be y's memory, unless it is null;
  // then a ReLU. y is rounded before the sum.
  const void* addend = nullptr;
  bool has_relu = false;
  bool starts_early = false;  // see LaunchEarly
  // Then read a part of w, and gamma and beta, before earlier work has ended, rather than only
  // bring w to the cache: none of that work may write them.
  bool loads_weights_early = false;
};

inline bool FitsFewRows(ElementType type, const FewRowsArguments& a) {
  return type == ElementType::kBfloat16 && a.rows <= kFewRows && a.inputs % 8 == 0 &&
         a.outputs % 8 == 0;
}

inline bool AreAligned(const FewRowsArguments& a) {
  uintptr_t addresses = 0;
  for (const void* const address : {a.x, a.w, a.norm.gamma, a.norm.beta}) {
    addresses |= reinterpret_cast<uintptr_t>(address);
  }
  return addresses % 16 == 0;
}

// One way to divide the work. A row's bits depend on it, on I and on O alone. Those with a norm, a
// sum or a ReLU are those of the operations apart.
struct FewRowsTile {
  int columns = 0;  // of a block
  int warps = 0;    // that a block has at most
  int blocks = 1;   // of a cluster (kernels/cuda/device/cluster.cuh), among which a strip's inputs
                    // are divided: GPUs below compute capability 9.0 refuse more than one
  cudaError_t (*launch)(cudaStream_t stream, Activation activation,
                        const FewRowsArguments& arguments) = nullptr;
};
std::span<const FewRowsTile> FewRowsTiles();

// Returns the shared memory of a block. With a norm it also has the rows of x: a GPU may have too
// little for long ones.
int64_t FewRowsSharedBytes(const FewRowsTile& tile, const FewRowsArguments& arguments,
                           bool has_norm);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_KERNELS_H_
