#ifndef STAGECOACH_KERNELS_CUDA_ACTIVATION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_ACTIVATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element_type.h"

// The pointwise parts of LinearOp (kernels/ops/linear.h) that are not part of a product. Results
// may be any of the operands; arrays of `type`, of any length and alignment. A GELU is its tanh
// form.
namespace stagecoach::kernels {

// y = max(0, z).
cudaError_t LaunchRelu(cudaStream_t stream, ElementType type, int64_t elements, const void* z,
                       void* y);
// dz = dy where y > 0, 0 elsewhere.
cudaError_t LaunchReluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* y, void* dz);

// y = gelu(z).
cudaError_t LaunchGelu(cudaStream_t stream, ElementType type, int64_t elements, const void* z,
                       void* y);
// dz = dy gelu'(z).
cudaError_t LaunchGeluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* z, void* dz);

// to = to + from.
cudaError_t LaunchAddFloats(cudaStream_t stream, int64_t elements, const float* from, float* to);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_ACTIVATION_KERNELS_H_
