#ifndef STAGECOACH_KERNELS_CUDA_OPS_COLUMN_SUMS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_COLUMN_SUMS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The gradient of a bias, db of LinearOp (kernels/ops/linear.h), where cuBLASLt does not compute it
// beside a product.
namespace stagecoach::kernels {

struct ColumnSumsArguments {
  int64_t rows = 1;              // R
  int64_t columns = 1;           // O
  const void* matrix = nullptr;  // (R, O), of the type named beside
  float* sums = nullptr;         // (O); added to if `accumulate`
  bool accumulate = false;
  float* workspace = nullptr;  // ColumnSumsWorkspaceBytes
};
// In an order that depends on R and O alone.
int64_t ColumnSumsWorkspaceBytes(int64_t rows, int64_t columns);
cudaError_t LaunchColumnSums(cudaStream_t stream, ElementType type,
                             const ColumnSumsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_COLUMN_SUMS_KERNELS_H_
