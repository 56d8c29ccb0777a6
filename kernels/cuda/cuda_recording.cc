#include "kernels/cuda/cuda_recording.h"

#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace stagecoach::kernels {
namespace {

// The work is sound, but it is not for a graph.
bool RefusesCapture(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status CudaRecording::Play(cudaStream_t stream, absl::FunctionRef<absl::Status()> issue) {
  switch (state_) {
    case State::kNew:
      RETURN_IF_ERROR(issue());
      state_ = State::kWarm;
      return absl::OkStatus();
    case State::kPlain:
      return issue();
    case State::kWarm:
      RETURN_IF_ERROR(Capture(stream, issue));
      if (state_ == State::kPlain) return issue();
      break;
    case State::kCaptured:
      break;
  }
  return CudaStatus(cudaGraphLaunch(graph_.get(), stream), "cudaGraphLaunch");
}

absl::Status CudaRecording::Capture(cudaStream_t stream, absl::FunctionRef<absl::Status()> issue) {
  // Thread-local: what other devices' threads do meanwhile does not matter to this capture.
  const cudaError_t begun = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (begun != cudaSuccess && !RefusesCapture(begun)) {
    return CudaStatus(begun, "cudaStreamBeginCapture");
  }
  cudaError_t ended = begun;
  cudaGraph_t captured = nullptr;
  absl::Status issued;
  if (begun == cudaSuccess) {
    issued = issue();
    ended = cudaStreamEndCapture(stream, &captured);  // whatever happened, or it would go on
  }
  const CudaGraph graph(gpu_, captured);
  if (RefusesCapture(ended)) {
    // Errors of `issue` are then only what the refused call returned; to issue it again will tell.
    static_cast<void>(cudaGetLastError());
    state_ = State::kPlain;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(issued);
  RETURN_IF_ERROR(CudaStatus(ended, "cudaStreamEndCapture"));
  return Instantiate(graph);
}

absl::Status CudaRecording::Instantiate(const CudaGraph& graph) {
  cudaGraphExec_t exec = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&exec, graph.get(), 0), "cudaGraphInstantiate"));
  graph_ = CudaGraphExec(gpu_, exec);
  state_ = State::kCaptured;
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
