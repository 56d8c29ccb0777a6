#ifndef STAGECOACH_KERNELS_CUDA_BACKEND_H_
#define STAGECOACH_KERNELS_CUDA_BACKEND_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// The least compute capability for which the backend has code: 8.0, which has bfloat16.
inline constexpr int kLeastComputeMajor = 8;

// One GPU as the driver describes it.
struct CudaGpu {
  std::string name;    // "NVIDIA H200"
  std::string bus_id;  // "0000:01:00.0"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

// What there is to compute with. Versions as the libraries print them; "" where there is none.
struct CudaSystem {
  std::string backend_path;  // of libstagecoach_cuda.so
  std::string driver, runtime, cublaslt, cudnn, nccl;
  // Why attention has the backend's own kernels only, and convolutions are products or refused; ""
  // if they are not.
  std::string no_cudnn;
  std::vector<CudaGpu> gpus;
  // Why `gpus` is empty and what to do, in one line; OK if there is one.
  absl::Status usable;
};

// The default budget of a device: the GPU's free memory, less a reserve for what libraries allocate
// later and no plan counts (buffers of NCCL, graphs, code that is loaded at its first use).
constexpr int64_t DefaultBudgetBytes(int64_t free_bytes) {
  constexpr int64_t kMostReserveBytes = int64_t{512} << 20;
  return free_bytes - std::min(kMostReserveBytes, free_bytes / 16);
}

struct CudaDeviceOptions {
  int gpu = 0;                     // the driver's ordinal; several devices may be on one GPU
  std::string name = "cuda:0";     // in messages
  int64_t memory_limit_bytes = 0;  // budget; 0: DefaultBudgetBytes of what is free
  Precision precision = Precision::kFloat32;
  // Which ways to compute products and attention are fastest is measured once per shape and kept in
  // this file, so that later runs compute the same bits; "": not measured, the first ones.
  std::string tuning_file;
  // Its operations are asked what they take, and are never run: which of several ways is taken need
  // not be found out, nor anything be compiled.
  bool is_for_planning = false;
};

// Asks the driver for hardware queues enough for the devices of this process. `gpus`: the GPU of
// each; empty: all are on GPUs of their own. Where devices share a GPU and streams share a queue,
// one device waits for another without need. The driver has 8 queues by default, which serve one
// device (4 streams, besides those of NCCL); this asks for 8 per device of the fullest GPU, and for
// 32 at most, which is what GPUs have. Sets $CUDA_DEVICE_MAX_CONNECTIONS, unless the user or an
// earlier call has: the driver reads it when the process first uses a GPU, and never again. Results
// do not depend on it. No other thread may read or change the environment meanwhile.
void RequestHardwareQueues(absl::Span<const int> gpus);

// The CUDA backend: libstagecoach_cuda.so, which is loaded at the first request, so that a run on
// CPUs does not pay for it or need its libraries. It is looked for at $STAGECOACH_CUDA_LIBRARY if
// that is set, or else beside the running program (../lib, ../kernels/cuda) and where the system
// has libraries. Thread-safe.
class CudaBackend {
 public:
  // Unavailable, in one line with cause and remedy: there is no such library, a library that it
  // needs is missing, or it belongs to another version of Stagecoach. The result lives as long as
  // the program.
  static absl::StatusOr<CudaBackend*> Load();

  virtual ~CudaBackend() = default;

  // Looks only: makes no context on any GPU.
  virtual CudaSystem Inspect() = 0;
  // What is free on a GPU that Inspect lists; 0 where there is not even room for a context. Makes
  // one there, which stays and takes some hundred megabytes: to be asked of GPUs that will be used.
  virtual absl::StatusOr<int64_t> FreeBytes(int gpu) = 0;
  // Unavailable: there is no such GPU, no driver or it is too old, or the backend was not compiled
  // for this GPU. FailedPrecondition: an environment variable would change results.
  // ResourceExhausted: too little memory is free. InvalidArgument: an option out of range.
  virtual absl::StatusOr<std::unique_ptr<Device>> CreateDevice(
      const CudaDeviceOptions& options) = 0;
  // CommunicatorOptions::id of a new group: one rank makes it, and tells the others.
  virtual absl::StatusOr<std::string> NewCommunicatorId() = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_BACKEND_H_
