#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace stagecoach::kernels {

// Writes `value`, in the stream's order, to `where`, the device's address of host memory, where the
// host sees it while the stream is running.
cudaError_t LaunchReport(cudaStream_t stream, int32_t* where, int32_t value);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_KERNELS_H_
