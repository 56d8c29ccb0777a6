#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_STATUS_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_STATUS_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Results of library calls, as absl::Status. Every call is wrapped:
//   RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord"));
// The message contains the call, the library's name of the error and its description. Codes: out of
// memory is ResourceExhausted; no driver, no device or a driver that is too old is Unavailable;
// everything else is Internal.
namespace stagecoach::kernels {

namespace internal {
absl::Status CudaError(cudaError_t error, absl::string_view call);
absl::Status CublasError(cublasStatus_t error, absl::string_view call);
absl::Status NcclError(ncclResult_t error, absl::string_view call, ncclComm_t communicator);
}  // namespace internal

inline absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  return error == cudaSuccess ? absl::OkStatus() : internal::CudaError(error, call);
}

inline absl::Status CublasStatus(cublasStatus_t error, absl::string_view call) {
  return error == CUBLAS_STATUS_SUCCESS ? absl::OkStatus() : internal::CublasError(error, call);
}

// Converts a result of NCCL. For a nonblocking communicator, ncclInProgress is no error.
// `communicator` may be null; the library's last error message is appended.
inline absl::Status NcclStatus(ncclResult_t error, absl::string_view call,
                               ncclComm_t communicator) {
  return error == ncclSuccess || error == ncclInProgress
             ? absl::OkStatus()
             : internal::NcclError(error, call, communicator);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_STATUS_H_
