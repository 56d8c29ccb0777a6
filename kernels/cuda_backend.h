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

// The least compute capability for which the backend has code: 8.0, the first with bfloat16.
inline constexpr int kLeastComputeMajor = 8;

// One GPU as the driver describes it.
struct CudaGpu {
  std::string name;    // "NVIDIA H200"
  std::string bus_id;  // "0000:01:00.0"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

// The available CUDA hardware and software. Versions are as the libraries print them; "" if
// missing.
struct CudaSystem {
  std::string backend_path;  // of libstagecoach_cuda.so
  std::string driver, runtime, cublaslt, cudnn, nccl;
  // Says why attention uses only the backend's own kernels, and convolutions are computed as
  // products or refused; "" if cuDNN is available.
  std::string no_cudnn;
  std::vector<CudaGpu> gpus;
  // Says in one line why `gpus` is empty and what to do; OK if there is one.
  absl::Status usable;
};

// Returns the default budget of a device: the GPU's free memory, less a reserve for what libraries
// allocate later and no plan counts (buffers of NCCL, graphs, code that is loaded at its first
// use).
constexpr int64_t DefaultBudgetBytes(int64_t free_bytes) {
  constexpr int64_t kMostReserveBytes = int64_t{512} << 20;
  return free_bytes - std::min(kMostReserveBytes, free_bytes / 16);
}

struct CudaDeviceOptions {
  int gpu = 0;                     // the driver's ordinal; several devices may be on one GPU
  std::string name = "cuda:0";     // in messages
  int64_t memory_limit_bytes = 0;  // budget; 0: DefaultBudgetBytes of the free memory
  Precision precision = Precision::kFloat32;
  // The fastest ways to compute products and attention are measured once per shape and kept in this
  // file, so that later runs compute the same bits; "": nothing is measured, and the first ways are
  // used.
  std::string tuning_file;
  // The device's operations are queried for what they accept, and never run: the backend need not
  // choose among several ways to compute, or compile anything.
  bool is_for_planning = false;
};

// Asks the driver for enough hardware queues for the devices of this process. `gpus` lists the GPU
// of each; empty: each device has a GPU of its own. If devices share a GPU and streams share a
// queue, one device waits for another needlessly. The driver has 8 queues by default, which serve
// one device (4 streams, besides those of NCCL); this asks for 8 per device of the fullest GPU, and
// for at most 32, which is what GPUs have. Sets $CUDA_DEVICE_MAX_CONNECTIONS, unless the user or an
// earlier call has: the driver reads it when the process first uses a GPU, and never again. Results
// do not depend on it. No other thread may read or change the environment meanwhile.
void RequestHardwareQueues(absl::Span<const int> gpus);

// The CUDA backend: libstagecoach_cuda.so, which is loaded at the first request, so that a run on
// CPUs does not pay for it or need its libraries. It is searched for at $STAGECOACH_CUDA_LIBRARY if
// that is set, and otherwise next to the running program (../lib, ../kernels/cuda) and where the
// system keeps libraries. Thread-safe.
class CudaBackend {
 public:
  // Loads the backend, which then lives as long as the program. Unavailable, in one line with cause
  // and remedy: the library does not exist, a library that it needs is missing, or it belongs to
  // another version of Stagecoach.
  static absl::StatusOr<CudaBackend*> Load();

  virtual ~CudaBackend() = default;

  // Describes the system; creates no context on any GPU.
  virtual CudaSystem Inspect() = 0;
  // Returns the free memory of a GPU that Inspect lists; 0 if there is not even room for a context.
  // Creates a context there, which stays and takes some hundred megabytes: call it only for GPUs
  // that will be used.
  virtual absl::StatusOr<int64_t> FreeBytes(int gpu) = 0;
  // Creates a device. Unavailable: the GPU does not exist, the driver is missing or too old, or the
  // backend was not compiled for this GPU. FailedPrecondition: an environment variable would change
  // results. ResourceExhausted: too little memory is free. InvalidArgument: an option is out of
  // range.
  virtual absl::StatusOr<std::unique_ptr<Device>> CreateDevice(
      const CudaDeviceOptions& options) = 0;
  // Makes the CommunicatorOptions::id of a new group: one rank calls this, and tells the others.
  virtual absl::StatusOr<std::string> NewCommunicatorId() = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_BACKEND_H_
