#ifndef STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The pointwise parts of LinearOp (kernels/ops/linear.h) that are not part of a product. Results
// may be any of the operands; arrays of `type`, of any length and alignment. A GELU is its tanh
// form unless it is called exact.
namespace stagecoach::kernels {

// What follows a product without a fused epilogue: z = product + bias, y = activation(z).
struct BiasArguments {
  int64_t rows = 1;               // R
  int64_t columns = 1;            // O
  const void* product = nullptr;  // (R, O)
  const void* bias = nullptr;     // (O), one element per column; no result; null: 0
  void* z = nullptr;              // (R, O); null: not written
  void* y = nullptr;              // (R, O), of z before it is rounded
};
using LaunchBiasFunction = cudaError_t(cudaStream_t stream, ElementType type,
                                       const BiasArguments& arguments);
LaunchBiasFunction LaunchBias;      // y = z
LaunchBiasFunction LaunchBiasRelu;  // y = max(0, z)
LaunchBiasFunction LaunchBiasGelu;  // y = gelu(z)
LaunchBiasFunction LaunchBiasGeluExact;

// dz = dy where y > 0, 0 elsewhere.
cudaError_t LaunchReluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* y, void* dz);

// dz = dy gelu'(z).
cudaError_t LaunchGeluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* z, void* dz);
cudaError_t LaunchGeluExactBackward(cudaStream_t stream, ElementType type, int64_t elements,
                                    const void* dy, const void* z, void* dz);

// to = to + from.
cudaError_t LaunchAddFloats(cudaStream_t stream, int64_t elements, const float* from, float* to);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_
