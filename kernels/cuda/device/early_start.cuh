#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_

#include <cuda_runtime.h>

// Kernels that start before the preceding one in the stream has ended (programmatic dependent
// launch, compute capability 9.0): a GPU takes about as long to start a kernel as some need to
// compute. Such a kernel is launched by LaunchEarly (launch.cuh). In other kernels, and on other
// GPUs, both calls do nothing.
namespace stagecoach::kernels {

// Waits until all earlier work in the stream has ended, and sees what it wrote. All threads of such
// a kernel call it before they read or write anything but their own registers and shared memory, so
// that whatever follows the kernel also follows all the work before it.
__device__ __forceinline__ void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as all blocks of this one have called it, if that is one that
// waits.
__device__ __forceinline__ void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Prefetches the memory at an address into the GPU's cache. A later read sees the contents at that
// time, so a kernel may do this before it waits.
__device__ __forceinline__ void BringToCache(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_
