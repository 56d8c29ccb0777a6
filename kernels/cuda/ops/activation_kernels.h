#ifndef STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/element_type.h"

// Activations by themselves, and the pointwise parts of LinearOp (kernels/ops/linear.h) that are
// not part of a product. Results may be any of the operands; arrays of `type`, of any length and
// alignment.
namespace stagecoach::kernels {

// The work after a product without a fused epilogue: z = product + bias, y = activation(z).
struct BiasArguments {
  int64_t rows = 1;               // R
  int64_t columns = 1;            // O
  const void* product = nullptr;  // (R, O)
  const void* bias = nullptr;     // (O), one element per column; none of the results; null: 0
  void* z = nullptr;              // (R, O); null: not written
  void* y = nullptr;              // (R, O), from z before rounding
};
cudaError_t LaunchBias(cudaStream_t stream, ElementType type, Activation activation,
                       const BiasArguments& arguments);

// Computes y = activation(a + b).
cudaError_t LaunchActivationOfSum(cudaStream_t stream, ElementType type, Activation activation,
                                  int64_t elements, const void* a, const void* b, void* y);

// Computes dz = dy activation'(z), and the sums over the columns of the dz that is written.
struct ActivationBackwardArguments {
  int64_t rows = 1;             // R
  int64_t columns = 1;          // O
  const void* dy = nullptr;     // (R, O)
  const void* known = nullptr;  // (R, O): z if KeepsZ(activation), otherwise y; not read with kNone
  void* dz = nullptr;           // (R, O); null: not written
  float* partial_sums = nullptr;  // PartialSumsBytes, for LaunchTotalSums; null: not summed
};
cudaError_t LaunchActivationBackward(cudaStream_t stream, ElementType type, Activation activation,
                                     const ActivationBackwardArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ACTIVATION_KERNELS_H_
