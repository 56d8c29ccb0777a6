#ifndef STAGECOACH_KERNELS_CUDA_ENVIRONMENT_H_
#define STAGECOACH_KERNELS_CUDA_ENVIRONMENT_H_

#include "absl/status/status.h"

namespace stagecoach::kernels {

// Returns FailedPrecondition, naming the variable and the remedy in one line, if an environment
// variable makes NVIDIA's libraries compute other bits than the options of a device ask for.
// Variables that concern only logging, caches or speed are ignored.
absl::Status CheckEnvironment();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_ENVIRONMENT_H_
