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
// A block has a strip of columns, and each of its warps a part of the inputs. Warps multiply on
// tensor cores, with w as the first factor: a lane needs only words of it that it loads itself, so
// that w bypasses shared memory. The warps' sums are added up in their order.
namespace stagecoach::kernels {

inline constexpr int64_t kFewRows = 8;

// All are bfloat16, and w and x at multiples of 16.
struct FewRowsArguments {
  int64_t rows = 1;            // R, at most kFewRows
  int64_t inputs = 1;          // I, a multiple of 8
  int64_t outputs = 1;         // O, a multiple of 8
  const void* x = nullptr;     // (R, I)
  const void* w = nullptr;     // (I, O)
  const void* bias = nullptr;  // (O); null: 0
  void* z = nullptr;           // (R, O); null: not written
  void* y = nullptr;           // (R, O), from z before rounding
  bool starts_early = false;   // see LaunchEarly
  // Then read a part of w before earlier work has ended, rather than only bring it to the cache:
  // none of that work may write w.
  bool loads_weights_early = false;
};

inline bool FitsFewRows(ElementType type, const FewRowsArguments& a) {
  return type == ElementType::kBfloat16 && a.rows <= kFewRows && a.inputs % 8 == 0 &&
         a.outputs % 8 == 0;
}

inline bool AreAligned(const FewRowsArguments& a) {
  return (reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.w)) % 16 == 0;
}

// One way to divide the work. A row's bits depend on it, on I and on O alone.
struct FewRowsTile {
  int columns = 0;  // of a block
  int warps = 0;    // that a block has at most
  cudaError_t (*launch)(cudaStream_t stream, Activation activation,
                        const FewRowsArguments& arguments) = nullptr;
};
std::span<const FewRowsTile> FewRowsTiles();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_KERNELS_H_
