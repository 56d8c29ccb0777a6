#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_

#include <cuda_runtime.h>

#include <cstdint>

// Thread block clusters (compute capability 9.0): neighboring blocks that run at the same time and
// can read each other's shared memory. A kernel is launched with them by LaunchClusters
// (cluster_launch.cuh). Other GPUs refuse the launch.
namespace stagecoach::kernels {

// Waits for all threads of all blocks of the cluster, and sees what they have written to shared
// memory. A block may end only after a barrier that follows all reads of its memory.
__device__ __forceinline__ void ClusterBarrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Reads what block `rank` of the cluster has where `own` is in the calling thread's block.
__device__ __forceinline__ float LoadFromBlock(const float* own, unsigned rank) {
  float value = 0.0F;
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_CUH_
