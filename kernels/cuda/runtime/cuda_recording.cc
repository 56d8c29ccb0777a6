#include "kernels/cuda/runtime/cuda_recording.h"

#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Returns whether the work may be sound but cannot be made a graph: it calls something that does
// not support graphs, or there is no memory for the graph. Everything else is an error of the work
// or of the GPU.
bool IsNoGraph(cudaError_t error) {
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
    case cudaErrorMemoryAllocation:
    case cudaErrorNotSupported:
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
  IssueCount::Add(1);
  const cudaError_t launched = cudaGraphLaunch(graph_.get(), stream);
  if (IsNoGraph(launched)) {  // its GPU memory is allocated at the first launch
    RETURN_IF_ERROR(BePlain(launched, "cudaGraphLaunch"));
    return issue();
  }
  return CudaStatus(launched, "cudaGraphLaunch");
}

absl::Status CudaRecording::Capture(cudaStream_t stream, absl::FunctionRef<absl::Status()> issue) {
  // The capture is thread-local: what other devices' threads do meanwhile does not matter to it.
  const cudaError_t begun = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (IsNoGraph(begun)) return BePlain(begun, "cudaStreamBeginCapture");
  RETURN_IF_ERROR(CudaStatus(begun, "cudaStreamBeginCapture"));
  const int64_t count = IssueCount::now();
  const absl::Status issued = issue();
  IssueCount::ResetTo(count);
  cudaGraph_t captured = nullptr;
  // The capture must be ended whatever happened, or it would continue.
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  const CudaGraph graph(gpu_, captured);
  // Errors of `issue` are then only what the refused call returned; issuing it again will tell.
  if (IsNoGraph(ended)) return BePlain(ended, "cudaStreamEndCapture");
  RETURN_IF_ERROR(issued);
  RETURN_IF_ERROR(CudaStatus(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&exec, graph.get(), 0);
  if (IsNoGraph(instantiated)) return BePlain(instantiated, "cudaGraphInstantiate");
  RETURN_IF_ERROR(CudaStatus(instantiated, "cudaGraphInstantiate"));
  graph_ = CudaGraphExec(gpu_, exec);
  state_ = State::kCaptured;
  return absl::OkStatus();
}

absl::Status CudaRecording::BePlain(cudaError_t error, const char* call) {
  static_cast<void>(cudaGetLastError());  // it would be reported by the next call
  why_plain_ = std::string(CudaStatus(error, call).message());
  graph_ = {};
  state_ = State::kPlain;
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
