#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/ops/linear/dequantize_kernels.h"

// LinearOp::Forward (kernels/ops/linear.h) for few rows and a weight that is stored in 4 or 8 bits
// a value: time is dominated by reading the weight, so its codes are read once, in pieces of 16
// bytes, and become values in registers. They are those of DequantizeOp, to the bit.
//
// A block has a strip of outputs and a piece of the inputs, and each of its warps consecutive
// groups of 64 inputs. A warp copies its next groups into shared memory while it multiplies:
// float32 by fused multiply-adds, bfloat16 on tensor cores, both summed in float32. The sums of
// lanes, then those of warps, and then those of pieces are added in their order. So a row's bits
// depend on the inputs, the weight and the kind of GPU alone, not on how many rows or outputs there
// are.
namespace stagecoach::kernels {

inline constexpr int64_t kQuantizedRowsGroup = 64;  // inputs

// How inputs are divided among pieces and warps. Those of GPUs with less shared memory are smaller.
struct QuantizedRowsSplit {
  int pieces = 1, warps = 1;  // warps: of a piece
  int warp_groups = 1;        // of a warp; the last ones may have fewer, or none
  bool may_be_wide = false;   // strips have 64 outputs if there are enough of them, or 32

  // The size of the sums of pieces.
  int64_t sum_bytes(int64_t rows, int64_t outputs) const {
    return pieces == 1 ? 0 : pieces * rows * outputs * static_cast<int64_t>(sizeof(float));
  }
};
// `block_shared_bytes`: the most shared memory of a block.
QuantizedRowsSplit SplitNf4Rows(int64_t inputs, int64_t block_shared_bytes);
QuantizedRowsSplit SplitInt8Rows(int64_t inputs, int64_t block_shared_bytes);

struct QuantizedRowsArguments {
  QuantizedRowsSplit split;
  int64_t rows = 1;               // R; codes become values anew for each 4 or 8 (bfloat16: 16)
  const void* x = nullptr;        // (R, inputs), of the type, at a multiple of 16
  const void* bias = nullptr;     // (outputs), of the type; null: 0
  void* y = nullptr;              // (R, outputs), of the type
  float* partial_sums = nullptr;  // sum_bytes
  bool starts_early = false;      // see LaunchEarly
};

// Returns whether the kernels take a weight of these extents, whose codes are rows of
// `code_row_bytes` and begin at a multiple of 16. Kernels count groups in 32 bits.
inline bool FitsQuantizedRows(int64_t inputs, int64_t code_row_bytes) {
  return inputs % kQuantizedRowsGroup == 0 && code_row_bytes % 16 == 0 &&
         inputs / kQuantizedRowsGroup <= (int64_t{1} << 30) / code_row_bytes;
}

// Pre-conditions: FitsQuantizedRows; `parts` are all parts of the matrix.
cudaError_t LaunchNf4Rows(cudaStream_t stream, ElementType type, const Nf4Parts& parts,
                          const Nf4Data& from, const QuantizedRowsArguments& arguments);
cudaError_t LaunchInt8Rows(cudaStream_t stream, ElementType type, const Int8Data& from,
                           const QuantizedRowsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_KERNELS_H_
