#ifndef STAGECOACH_KERNELS_CUDA_OPS_DROPOUT_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_DROPOUT_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernel of DropoutOp (kernels/ops/dropout.h has the formula, the shapes and the key). `void`
// pointers are to elements of the type passed with them.
namespace stagecoach::kernels {

struct DropoutArguments {
  int64_t rows = 1;        // R
  int64_t elements = 1;    // E
  uint32_t threshold = 0;  // words below it are dropped
  float scale = 1.0F;      // of kept elements
  uint64_t seed = 0;
  uint64_t random_stream = 0;
  const int64_t* first_sample = nullptr;  // may be null
  const void* x = nullptr;
  void* y = nullptr;
};
cudaError_t LaunchDropout(cudaStream_t stream, ElementType type, const DropoutArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_DROPOUT_KERNELS_H_
