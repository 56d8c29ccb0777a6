#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_RECORDING_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_RECORDING_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// Work kept as a CUDA graph. For jobs of the stream only.
class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(int gpu) : gpu_(gpu) {}

  Form form() const override { return state_ == State::kCaptured ? Form::kGraph : Form::kPlain; }
  std::string why_plain() const override { return why_plain_; }

  // Implements Stream::Replay: issues the work to `stream`, a stream of the GPU and the same one
  // every time. The first call is plain, because libraries load their code at its first use, which
  // cannot be captured; the second captures; later ones launch the captured graph. Work that cannot
  // be made a graph, or has no memory to become one, is issued plainly every time.
  absl::Status Play(cudaStream_t stream, absl::FunctionRef<absl::Status()> issue);

 private:
  enum class State : uint8_t { kNew, kWarm, kCaptured, kPlain };

  absl::Status Capture(cudaStream_t stream, absl::FunctionRef<absl::Status()> issue);
  // Issues the work plainly from now on, because of `error` of `call`.
  absl::Status BePlain(cudaError_t error, const char* call);

  const int gpu_;
  State state_ = State::kNew;
  CudaGraphExec graph_;
  std::string why_plain_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_RECORDING_H_
