#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_

namespace stagecoach::kernels {

// The block's dynamic shared memory: as many bytes as its launch asked for, 16-byte aligned, not
// initialized. Every call returns the same address, whatever T is. Kernels use no other shared
// memory, because the extent of this one is known at the launch, so that the emulator can check it.
template <typename T>
__device__ __forceinline__ T* SharedMemory() {
  extern __shared__ __align__(16) unsigned char stagecoach_shared_memory[];
  return reinterpret_cast<T*>(stagecoach_shared_memory);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_SHARED_MEMORY_CUH_
