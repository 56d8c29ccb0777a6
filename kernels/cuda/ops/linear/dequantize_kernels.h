#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_DEQUANTIZE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_DEQUANTIZE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of DequantizeOp (kernels/ops/dequantize.h). kernels/quantized_matrix.h describes what
// is stored.
namespace stagecoach::kernels {

// Consecutive parts of an NF4 matrix.
struct Nf4Parts {
  static constexpr int kMost = 16;
  struct Part {
    int64_t first_output, first_block, first_nested;
  };
  int64_t inputs, outputs;    // of the whole matrix
  int64_t first_part;         // the number of the first of them
  int64_t first_output, end;  // their outputs
  int count;
  Part parts[kMost];
};
struct Nf4Data {
  const uint8_t* codes;
  const uint8_t* scales;      // if they are in 8 bits
  const float* float_scales;  // otherwise
  const float* nested;        // with `scales`
  const float* offsets;
};
struct Int8Data {
  int64_t inputs, outputs;
  const int8_t* codes;
  const float* scales;
};

// Writes the values of these parts.
cudaError_t LaunchDequantizeNf4(cudaStream_t stream, ElementType type, const Nf4Parts& parts,
                                const Nf4Data& from, void* values);
cudaError_t LaunchDequantizeInt8(cudaStream_t stream, ElementType type, const Int8Data& from,
                                 void* values);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_DEQUANTIZE_KERNELS_H_
