#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_LAUNCH_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/device/launch.cuh"

namespace stagecoach::kernels {

// The most blocks of a cluster that every GPU takes which has clusters.
inline constexpr unsigned kMaxClusterBlocks = 8;

// Does the same as LaunchEarly, with clusters of `cluster_blocks` blocks (cluster.cuh), by which
// the grid's x is divisible. With more than one, a GPU of a compute capability below 9.0 refuses.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchClusters(unsigned cluster_blocks, bool starts_early,
                           void (*kernel)(Parameters...), dim3 grid, dim3 block,
                           size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
  if (cluster_blocks == 1) {
    return LaunchEarly(starts_early, kernel, grid, block, shared_bytes, stream, arguments...);
  }
  if (shared_bytes > kDefaultSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {cluster_blocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = starts_early ? 2 : 1;
  IssueCount::Add(1);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_CLUSTER_LAUNCH_CUH_
