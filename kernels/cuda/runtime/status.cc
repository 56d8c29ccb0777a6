#include "kernels/cuda/runtime/status.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels::internal {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::StatusCode CodeOf(cublasStatus_t error) {
  switch (error) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_NOT_INITIALIZED:  // also on a machine without a driver
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaError(cudaError_t error, absl::string_view call) {
  // Clears the error, which the runtime would otherwise report again to the next caller; only
  // errors of the GPU's work cannot be cleared.
  static_cast<void>(cudaGetLastError());
  return absl::Status(CodeOf(error), absl::StrCat(call, ": ", cudaGetErrorName(error), ": ",
                                                  cudaGetErrorString(error)));
}

absl::Status CublasError(cublasStatus_t error, absl::string_view call) {
  return absl::Status(CodeOf(error), absl::StrCat(call, ": ", cublasLtGetStatusName(error), ": ",
                                                  cublasLtGetStatusString(error)));
}

absl::Status NcclError(ncclResult_t error, absl::string_view call, ncclComm_t communicator) {
  const absl::string_view reason = ncclGetLastError(communicator);
  // "A call failed possibly due to a network error or a remote process exiting prematurely."
  const absl::StatusCode code =
      error == ncclRemoteError ? absl::StatusCode::kAborted : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(call, ": ", ncclGetErrorString(error),
                                         reason.empty() ? "" : ": ", reason));
}

}  // namespace stagecoach::kernels::internal
