#ifndef STAGECOACH_KERNELS_CUDA_INSPECT_H_
#define STAGECOACH_KERNELS_CUDA_INSPECT_H_

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::kernels {

// Returns how many GPUs there are, at least one. Unavailable, with cause and remedy in one line: no
// driver, one that is too old, or no GPU.
absl::StatusOr<int> CountGpus();

// Describes GPU `gpu` in [0, CountGpus()).
absl::StatusOr<CudaGpu> DescribeGpu(int gpu);

// Implements CudaBackend::Inspect, except for backend_path.
CudaSystem InspectCuda();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_INSPECT_H_
