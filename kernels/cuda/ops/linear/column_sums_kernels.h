#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_COLUMN_SUMS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_COLUMN_SUMS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// Sums over the columns of a matrix (R, O), in two steps: first over blocks of rows, then over the
// results. The first step can also be part of LaunchActivationBackward (activation_kernels.h). The
// order of a sum depends on R and O alone, and not on which function takes the first step.
namespace stagecoach::kernels {

// Returns the size of the first step's result: (blocks of rows, O) of float32.
int64_t PartialSumsBytes(int64_t rows, int64_t columns);

struct TotalSumsArguments {
  int64_t rows = 1;     // R
  int64_t columns = 1;  // O
  const float* partial_sums = nullptr;
  float* sums = nullptr;  // (O); added to if `accumulate`
  bool accumulate = false;
};
cudaError_t LaunchTotalSums(cudaStream_t stream, const TotalSumsArguments& arguments);

// Arguments of both steps, or of one if there is one block of rows.
struct ColumnSumsArguments {
  int64_t rows = 1;              // R
  int64_t columns = 1;           // O
  const void* matrix = nullptr;  // (R, O), of the type passed separately
  float* sums = nullptr;         // (O); added to if `accumulate`
  bool accumulate = false;
  float* workspace = nullptr;  // ColumnSumsWorkspaceBytes
};
int64_t ColumnSumsWorkspaceBytes(int64_t rows, int64_t columns);
cudaError_t LaunchColumnSums(cudaStream_t stream, ElementType type,
                             const ColumnSumsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_COLUMN_SUMS_KERNELS_H_
