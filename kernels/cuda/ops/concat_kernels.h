#ifndef STAGECOACH_KERNELS_CUDA_OPS_CONCAT_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_CONCAT_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of ConcatOp (kernels/ops/concat.h has the shapes).
namespace stagecoach::kernels {

struct ConcatExtents {
  int64_t rows, first, second;
};
cudaError_t LaunchJoin(cudaStream_t stream, ElementType type, const ConcatExtents& extents,
                       const void* first, const void* second, void* whole);
// `first` or `second` may be null.
cudaError_t LaunchSplit(cudaStream_t stream, ElementType type, const ConcatExtents& extents,
                        const void* whole, void* first, void* second);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_CONCAT_KERNELS_H_
