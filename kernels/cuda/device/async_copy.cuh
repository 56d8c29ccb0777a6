#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

// Asynchronous copies from global to shared memory that bypass registers (compute capability 8.0).
// Nothing may touch the destination, or change the source, before they have arrived.
namespace stagecoach::kernels {

// Starts to copy 16 bytes; both addresses are multiples of 16. If `reads` is false, the destination
// is filled with zeros, and `from` may be any such address.
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool reads) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(reads ? 16 : 0)
               : "memory");
}

// Does the same where the rest of the 128 bytes around `from` is needed by others soon.
__device__ __forceinline__ void CopyLineAsync(void* to, const void* from, bool reads) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(reads ? 16 : 0)
               : "memory");
}

// Makes a group of the copies that the calling thread has started since its last group.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all groups of the calling thread but its last kGroups have arrived. Its own copies
// are then visible to it, and to other threads after a barrier.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
