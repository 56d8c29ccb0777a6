#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include "tests/testing/cuda/emulator/cluster.h"

namespace stagecoach::kernels {

inline void ClusterBarrier(testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::ClusterBarrier(location);
}

inline float LoadFromBlock(const float* own, unsigned rank,
                           testing::cuda::Location location = testing::cuda::Location::current()) {
  return *static_cast<const float*>(testing::cuda::SharedOfBlock(own, rank, location));
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_
