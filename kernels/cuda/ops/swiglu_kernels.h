#ifndef STAGECOACH_KERNELS_CUDA_OPS_SWIGLU_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_SWIGLU_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/glu_gate.h"

// The kernels of SwiGluOp (kernels/ops/swiglu.h has the formulas and shapes). Pointers are to
// elements of the type passed with them.
namespace stagecoach::kernels {

struct SwiGluArguments {
  int64_t rows = 1;      // R
  int64_t features = 1;  // C
  GluGate gate = GluGate::kSilu;
  const void* x = nullptr;
  void* y = nullptr;         // forward only
  const void* dy = nullptr;  // backward only, like dx
  void* dx = nullptr;
};
cudaError_t LaunchSwiGluForward(cudaStream_t stream, ElementType type,
                                const SwiGluArguments& arguments);
cudaError_t LaunchSwiGluBackward(cudaStream_t stream, ElementType type,
                                 const SwiGluArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_SWIGLU_KERNELS_H_
