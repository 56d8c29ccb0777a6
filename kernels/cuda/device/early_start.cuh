#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_

#include <cuda_runtime.h>

// Kernels that start before the one ahead of them in the stream has ended (programmatic dependent
// launch, compute capability 9.0): a GPU takes about as long to start a kernel as some need to
// compute. Such a kernel is launched by LaunchEarly (launch.cuh). Both calls do nothing in one that
// was not, and on other GPUs.
namespace stagecoach::kernels {

// Waits until all that is ahead in the stream has ended, and sees what it wrote. All threads of
// such a kernel call it before they read or write anything but their own registers and shared
// memory: so whatever follows the kernel also follows all that was ahead of it.
__device__ __forceinline__ void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as all blocks of this one have called it, if it is one that
// waits.
__device__ __forceinline__ void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for the memory at an address to be brought to the GPU's cache. What is read there later is
// what it holds then: so a kernel may do this before it waits.
__device__ __forceinline__ void BringToCache(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_EARLY_START_CUH_
