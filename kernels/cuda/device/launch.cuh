#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device/issue_count.h"

namespace stagecoach::kernels {

// The most dynamic shared memory that a kernel gets without asking for more.
inline constexpr size_t kDefaultSharedBytes = size_t{48} << 10;

// Does the same as Launch. The kernel, which calls WaitForEarlierKernels, may start before the
// preceding work in the stream has ended (early_start.cuh) if `starts_early`, which requires
// compute capability 9.0.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchEarly(bool starts_early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                        size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
  if (shared_bytes > kDefaultSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = starts_early ? &early : nullptr;
  config.numAttrs = starts_early ? 1 : 0;
  IssueCount::Add(1);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Puts `kernel` into the order of `stream`, whose GPU is the current one, with `shared_bytes` of
// dynamic shared memory per block (SharedMemory<T>() in shared_memory.cuh). Arguments are converted
// to the types of the kernel's parameters. Returns the result of the launch: its own error, or an
// earlier one of the device.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) {
  return LaunchEarly(false, kernel, grid, block, shared_bytes, stream, arguments...);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
