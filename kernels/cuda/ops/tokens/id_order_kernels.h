#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_ID_ORDER_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_ID_ORDER_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

// Sorts ids of a vocabulary in ascending order, and equal ones in the order in which they came.
namespace stagecoach::kernels {

struct IdOrderArguments {
  int64_t count = 1;
  int64_t vocabulary = 1;
  const int32_t* ids = nullptr;
  // The id at each place of the order, and its original place. An id outside the vocabulary counts
  // as the first beyond it.
  int32_t* sorted_ids = nullptr;
  int32_t* origins = nullptr;
  int32_t* workspace = nullptr;  // IdOrderWorkspaceBytes
};
int64_t IdOrderWorkspaceBytes(int64_t count);
cudaError_t LaunchIdOrder(cudaStream_t stream, const IdOrderArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_ID_ORDER_KERNELS_H_
