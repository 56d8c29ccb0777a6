#ifndef STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of LayerNormOp (kernels/ops/layer_norm.h has the formulas and shapes), also for
// RMSNorm, if `centers` is false. `void` pointers are to elements of the type passed with them.
namespace stagecoach::kernels {

struct LayerNormForwardArguments {
  int64_t rows = 1;      // R
  int64_t features = 1;  // C
  float epsilon = 0.0F;
  bool centers = true;
  void* x = nullptr;             // written only if there is an addend
  const void* addend = nullptr;  // may be null
  const void* gamma = nullptr;
  const void* beta = nullptr;  // null unless `centers`
  float* statistics = nullptr;
  void* y = nullptr;
  bool starts_early = false;  // use LaunchEarly if there are few rows
};
cudaError_t LaunchLayerNormForward(cudaStream_t stream, ElementType type,
                                   const LayerNormForwardArguments& arguments);

// dx is computed unless it is null, and so are dgamma and dbeta unless dgamma is null: together
// takes less time than separately, with the same bits. `dx` may be `dy` if it is computed alone.
struct LayerNormBackwardArguments {
  int64_t rows = 1;
  int64_t features = 1;
  bool centers = true;
  const void* dy = nullptr;
  const void* x = nullptr;
  const float* statistics = nullptr;
  const void* gamma = nullptr;   // for dx
  const void* addend = nullptr;  // to dx; may be null
  void* dx = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;  // written only if `centers`
  bool accumulate = false;
  float* workspace = nullptr;  // for dgamma: LayerNormWorkspaceBytes
};
int64_t LayerNormWorkspaceBytes(int64_t rows, int64_t features, bool centers);
cudaError_t LaunchLayerNormBackward(cudaStream_t stream, ElementType type,
                                    const LayerNormBackwardArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_KERNELS_H_
