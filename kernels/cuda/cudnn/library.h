#ifndef STAGECOACH_KERNELS_CUDA_CUDNN_LIBRARY_H_
#define STAGECOACH_KERNELS_CUDA_CUDNN_LIBRARY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/api.h"

namespace stagecoach::kernels::cudnn {

// Returns the library: the one that the process already has, or else libcudnn.so.9 where the system
// looks for libraries. It is opened at the first request and stays open. Unavailable, in one line:
// it does not exist, lacks a function, is older than 9.19, the first version whose attention was
// tried, or has another major version. Thread-safe.
absl::StatusOr<const Api*> Open();

std::string VersionText(const Api& api);  // "9.19.0"

// Converts the result of a call, with the library's own words, in one line. Unimplemented: it does
// not support the request; Unavailable: there is no driver; everything else is Internal.
absl::Status ToStatus(const Api& api, Status status, const char* call);

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_LIBRARY_H_
