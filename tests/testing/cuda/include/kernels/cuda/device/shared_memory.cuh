#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::kernels {

template <typename T>
T* SharedMemory() {
  return reinterpret_cast<T*>(testing::cuda::SharedMemoryOfBlock());
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_
