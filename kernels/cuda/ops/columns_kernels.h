#ifndef STAGECOACH_KERNELS_CUDA_OPS_COLUMNS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_COLUMNS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of ColumnsOp (kernels/ops/columns.h has the shapes).
namespace stagecoach::kernels {

struct ColumnsExtents {
  int64_t rows, columns, first, count;
};
cudaError_t LaunchAddColumns(cudaStream_t stream, ElementType type, const ColumnsExtents& extents,
                             const void* part, float scale, void* whole);
cudaError_t LaunchTakeColumns(cudaStream_t stream, ElementType type, const ColumnsExtents& extents,
                              const void* whole, float scale, void* part);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_COLUMNS_KERNELS_H_
