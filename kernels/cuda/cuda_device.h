#ifndef STAGECOACH_KERNELS_CUDA_CUDA_DEVICE_H_
#define STAGECOACH_KERNELS_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// Implements CudaBackend::CreateDevice: creates a device on a GPU, or on a share of one, with
// streams of its own.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_CUDA_DEVICE_H_
