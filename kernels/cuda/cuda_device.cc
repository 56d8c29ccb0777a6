#include "kernels/cuda/cuda_device.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "kernels/communicator.h"
#include "kernels/cuda/environment.h"
#include "kernels/cuda/inspect.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/runtime/backoff.h"
#include "kernels/cuda/runtime/cuda_host_copies.h"
#include "kernels/cuda/runtime/cuda_peer_copy.h"
#include "kernels/cuda/runtime/cuda_recording.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/cuda_timeline.h"
#include "kernels/cuda/runtime/gpu_ledger.h"
#include "kernels/cuda/runtime/nccl_communicator.h"
#include "kernels/cuda/runtime/progress_kernels.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

// The parts of a device, all made before it.
struct Parts {
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<Tuner> tuner;
  std::unique_ptr<BlasLt> blas;
  CudaStreamHandle clearing;
  int64_t limit_bytes;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, Parts parts)
      : Device(DeviceKind::kCuda, options.precision, options.name, parts.limit_bytes),
        gpu_(options.gpu),
        clearing_(std::move(parts.clearing)),
        stream_(std::move(parts.stream)),
        tuner_(std::move(parts.tuner)),
        blas_(std::move(parts.blas)),
        ops_(*this, *blas_, *tuner_) {}

  // The libraries must not create a context on GPU 0 only to free what they have on this one.
  ~CudaDevice() override { const GpuScope scope(gpu_); }

  absl::StatusOr<AcceleratorMemory> MeasureMemory() const override {
    return GpuLedger::Of(gpu_).Measure();
  }

  std::vector<std::string> choices() const override { return tuner_->choices(); }

  Stream& stream() override { return *stream_; }
  Ops& ops() override { return ops_; }

  absl::StatusOr<std::unique_ptr<Recording>> CreateRecording() override {
    return std::unique_ptr<Recording>(std::make_unique<CudaRecording>(gpu_));
  }
  absl::StatusOr<std::unique_ptr<Timeline>> CreateTimeline(int slots) override {
    return CudaTimeline::Create(*stream_, slots);
  }
  absl::StatusOr<std::unique_ptr<HostCopies>> CreateHostCopies(int slots) override {
    return CudaHostCopies::Create(*stream_, slots);
  }
  absl::StatusOr<std::unique_ptr<PeerCopy>> CreatePeerCopy(Device& sender) override {
    STAGECOACH_CHECK(sender.kind() == DeviceKind::kCuda,
                     absl::StrCat("a peer copy from ", sender.name(), " to ", name()));
    return CudaPeerCopy::Create(*static_cast<CudaDevice&>(sender).stream_, *stream_);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) override {
    return CreateNcclCommunicator(*stream_, options);
  }

 private:
  absl::StatusOr<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data, int64_t bytes) override;
  absl::StatusOr<std::byte*> AllocateHostBytes(int64_t bytes) override;
  void FreeHostBytes(std::byte* data, int64_t bytes) override;

  const int gpu_;
  const CudaStreamHandle clearing_;  // zeroes memory, independently of what the other streams wait
                                     // for
  const std::unique_ptr<CudaStream> stream_;
  const std::unique_ptr<Tuner> tuner_;
  const std::unique_ptr<BlasLt> blas_;
  CudaOps ops_;
};

absl::StatusOr<std::byte*> CudaDevice::AllocateBytes(int64_t bytes) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(gpu_, bytes);
  if (absl::IsResourceExhausted(memory.status())) {
    const int64_t free_bytes = GpuLedger::Of(gpu_).FreeBytes().value_or(0);
    return base::Annotate(memory.status(),
                          absl::StrCat(name(), ": ", base::FormatBytes(bytes), " asked, GPU ", gpu_,
                                       " has ", base::FormatBytes(free_bytes),
                                       " free; allow less, or stop other programs on that GPU"));
  }
  RETURN_IF_ERROR(base::Annotate(memory.status(), name()));
  const GpuScope scope(gpu_);
  RETURN_IF_ERROR(scope.status());
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(memory->data(), 0, static_cast<size_t>(bytes), clearing_.get()),
                 "cudaMemsetAsync"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(clearing_.get()), "cudaStreamSynchronize"));
  GpuLedger::Of(gpu_).Add(bytes);
  return memory->Release();
}

void CudaDevice::FreeBytes(std::byte* data, int64_t bytes) {
  const GpuScope scope(gpu_);
  static_cast<void>(cudaFree(data));
  GpuLedger::Of(gpu_).Add(-bytes);
}

absl::StatusOr<std::byte*> CudaDevice::AllocateHostBytes(int64_t bytes) {
  absl::StatusOr<PinnedMemory> memory = PinnedMemory::Allocate(gpu_, bytes);
  if (memory.ok()) return memory->Release();
  return base::Annotate(memory.status(), absl::StrCat(name(), ": ", base::FormatBytes(bytes),
                                                      " of page-locked host memory"));
}

void CudaDevice::FreeHostBytes(std::byte* data, int64_t /*bytes*/) {
  const GpuScope scope(gpu_);
  static_cast<void>(cudaFreeHost(data));
}

absl::StatusOr<CudaGpu> CheckGpu(const CudaDeviceOptions& options) {
  if (options.gpu < 0 || options.memory_limit_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, ": GPU ", options.gpu, " with ",
                                                   options.memory_limit_bytes,
                                                   " bytes; neither may be negative"));
  }
  RETURN_IF_ERROR(CheckEnvironment());
  ASSIGN_OR_RETURN(const int gpus, CountGpus());
  if (options.gpu >= gpus) {
    return absl::UnavailableError(absl::StrCat("there is no GPU ", options.gpu, " for ",
                                               options.name, ": the driver sees ", gpus,
                                               gpus == 1 ? " GPU" : " GPUs", ", numbered from 0"));
  }
  ASSIGN_OR_RETURN(CudaGpu gpu, DescribeGpu(options.gpu));
  if (gpu.compute_major < kLeastComputeMajor) {
    return absl::UnavailableError(absl::StrCat(
        "GPU ", options.gpu, " (", gpu.name, ") has compute capability ", gpu.compute_major, ".",
        gpu.compute_minor, "; ", kLeastComputeMajor, ".0 or higher is needed"));
  }
  return gpu;
}

// Converts the result of launching a kernel.
absl::Status LaunchStatus(cudaError_t error, const CudaGpu& gpu) {
  const absl::Status status = CudaStatus(error, "LaunchReport");
  const bool lacks_code =
      error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
  if (!lacks_code) return status;
  return absl::UnavailableError(absl::StrCat(
      "this build of the CUDA backend has no code for GPUs of compute capability ",
      gpu.compute_major, ".", gpu.compute_minor, " (", status.message(),
      "); build it with -DCMAKE_CUDA_ARCHITECTURES=", gpu.compute_major, gpu.compute_minor));
}

// Launches a kernel and waits until it has written to host memory. This shows that this build has
// code for the GPU and that kernels run there, and loads the backend's code.
absl::Status TryKernel(const CudaGpu& gpu, int ordinal, cudaStream_t stream) {
  constexpr int32_t kWritten = 0x5EED;
  ASSIGN_OR_RETURN(PinnedMemory memory, PinnedMemory::Allocate(ordinal, sizeof(int32_t)));
  std::memset(memory.data(), 0, sizeof(int32_t));
  ASSIGN_OR_RETURN(std::byte* const on_device, memory.DeviceAddress());
  const GpuScope scope(ordinal);
  RETURN_IF_ERROR(scope.status());
  RETURN_IF_ERROR(
      LaunchStatus(LaunchReport(stream, reinterpret_cast<int32_t*>(on_device), kWritten), gpu));
  const base::Deadline deadline = base::Deadline::After(absl::Seconds(60));
  const Backoff patience(std::chrono::milliseconds(1), std::chrono::milliseconds(1));
  for (cudaError_t state = cudaErrorNotReady; state != cudaSuccess; patience.Wait()) {
    state = cudaStreamQuery(stream);
    if (state != cudaErrorNotReady) RETURN_IF_ERROR(CudaStatus(state, "cudaStreamQuery"));
    if (deadline.Expired()) {
      return absl::DeadlineExceededError("the GPU did not finish its first kernel within 60 s");
    }
  }
  int32_t written = 0;
  std::memcpy(&written, memory.data(), sizeof written);
  if (written != kWritten) {
    return absl::UnavailableError(
        "kernels do nothing on this GPU, though none fails; check the driver with nvidia-smi");
  }
  return CudaStatus(cudaFreeHost(memory.Release()), "cudaFreeHost");
}

absl::StatusOr<int64_t> LimitFor(const CudaDeviceOptions& options) {
  const int64_t asked_bytes = options.memory_limit_bytes;
  ASSIGN_OR_RETURN(const int64_t free_bytes, GpuLedger::Of(options.gpu).FreeBytes());
  if (free_bytes > 0 && asked_bytes <= free_bytes) {
    return asked_bytes > 0 ? asked_bytes : DefaultBudgetBytes(free_bytes);
  }
  const std::string asked =
      asked_bytes > 0 ? absl::StrCat(base::FormatBytes(asked_bytes), " are requested, ") : "";
  return absl::ResourceExhaustedError(
      absl::StrCat(asked, "GPU ", options.gpu, " has ", base::FormatBytes(free_bytes),
                   " free; allow less, or stop other programs on that GPU"));
}

absl::StatusOr<Parts> CreateParts(const CudaDeviceOptions& options, const CudaGpu& gpu) {
  GpuLedger& ledger = GpuLedger::Of(options.gpu);
  base::MutexLock lock(ledger.setup());
  RETURN_IF_ERROR(ledger.FreeBytes().status());  // while there is nothing but a context
  ASSIGN_OR_RETURN(CudaStreamHandle clearing,
                   CudaStreamHandle::Create(options.gpu, CudaStreamHandle::Priority::kNormal));
  RETURN_IF_ERROR(TryKernel(gpu, options.gpu, clearing.get()));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create(options.gpu));
  ASSIGN_OR_RETURN(std::unique_ptr<Tuner> tuner,
                   Tuner::Create(options.gpu, options.tuning_file, options.is_for_planning));
  ASSIGN_OR_RETURN(std::unique_ptr<BlasLt> blas, BlasLt::Create(options.precision, *tuner));
  ASSIGN_OR_RETURN(const int64_t limit, LimitFor(options));
  return Parts{.stream = std::move(stream),
               .tuner = std::move(tuner),
               .blas = std::move(blas),
               .clearing = std::move(clearing),
               .limit_bytes = limit};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const CudaGpu gpu, CheckGpu(options));
  absl::StatusOr<Parts> parts = CreateParts(options, gpu);
  RETURN_IF_ERROR(base::Annotate(parts.status(), absl::StrCat(options.name, " (", gpu.name, ")")));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(options, *std::move(parts)));
}

}  // namespace stagecoach::kernels
