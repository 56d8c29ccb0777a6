// The exported functions of libstagecoach_cuda.so.
#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/inspect.h"
#include "kernels/cuda/runtime/gpu_ledger.h"
#include "kernels/cuda/runtime/nccl_communicator.h"
#include "kernels/cuda_backend.h"
#include "kernels/cuda_backend_entry.h"

namespace stagecoach::kernels {
namespace {

class LoadedBackend final : public CudaBackend {
 public:
  CudaSystem Inspect() override {
    CudaSystem system = InspectCuda();
    system.backend_path = Path();
    return system;
  }

  absl::StatusOr<int64_t> FreeBytes(int gpu) override {
    ASSIGN_OR_RETURN(const int gpus, CountGpus());
    if (gpu < 0 || gpu >= gpus) {
      return absl::InvalidArgumentError(absl::StrCat("there is no GPU ", gpu));
    }
    return GpuLedger::Of(gpu).FreeBytes().value_or(0);  // no room even for a context
  }

  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const CudaDeviceOptions& options) override {
    return CreateCudaDevice(options);
  }

  absl::StatusOr<std::string> NewCommunicatorId() override { return NewNcclId(); }

 private:
  // Returns the path of the library that contains this code.
  static std::string Path() {
    Dl_info info;
    return dladdr(kCudaBackendVersion, &info) != 0 ? info.dli_fname : "";
  }
};

}  // namespace
}  // namespace stagecoach::kernels

extern "C" {

__attribute__((visibility("default"))) const char* StagecoachCudaVersion() {
  return stagecoach::kernels::kCudaBackendVersion;
}

__attribute__((visibility("default"))) stagecoach::kernels::CudaBackend* StagecoachCudaBackend() {
  static auto* const backend = new stagecoach::kernels::LoadedBackend;  // never destroyed
  return backend;
}

}  // extern "C"
