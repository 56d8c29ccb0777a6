#include "kernels/cuda/inspect.h"

#include <cuda_runtime_api.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/environment.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/runtime/nccl_communicator.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Formats CUDA's version numbers: 13000 is 13.0.
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Returns the newest CUDA that the driver supports; 0 if there is no driver.
int DriverVersion() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int RuntimeVersion() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

// Returns the driver's own version, as on its vendor's pages ("580.65.06"), from a line such as
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..."; "" if unknown.
std::string DriverRelease() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return "";
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        absl::StrContains(word, ".")) {
      return word;
    }
  }
  return "";
}

std::string DriverText() {
  const int version = DriverVersion();
  if (version == 0) return "";
  const std::string release = DriverRelease();
  return absl::StrCat(release, release.empty() ? "" : ", ", "for CUDA ", VersionText(version));
}

absl::Status NoUsableDriver(absl::string_view error) {
  const int driver = DriverVersion();
  const std::string needed = VersionText(RuntimeVersion());
  if (driver == 0) {
    return absl::UnavailableError(
        absl::StrCat("no NVIDIA driver was found (", error, "); install one for CUDA ", needed,
                     " or later, or give this container its GPUs (docker run --gpus all)"));
  }
  return absl::UnavailableError(absl::StrCat("the NVIDIA driver supports CUDA up to ",
                                             VersionText(driver), ", but this build needs ", needed,
                                             " (", error, "); update the driver"));
}

}  // namespace

absl::StatusOr<int> CountGpus() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  if (error == cudaSuccess) error = cudaErrorNoDevice;
  static_cast<void>(cudaGetLastError());
  const std::string text = absl::StrCat("cudaGetDeviceCount: ", cudaGetErrorName(error));
  if (error == cudaErrorInsufficientDriver) return NoUsableDriver(text);
  if (error == cudaErrorNoDevice) {
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver sees no GPU (", text,
                                               "); run nvidia-smi, and check "
                                               "CUDA_VISIBLE_DEVICES"));
  }
  return CudaStatus(error, "cudaGetDeviceCount");
}

absl::StatusOr<CudaGpu> DescribeGpu(int gpu) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties"));
  char bus_id[32] = "";
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, gpu), "cudaDeviceGetPCIBusId"));
  return CudaGpu{.name = properties.name,
                 .bus_id = bus_id,
                 .compute_major = properties.major,
                 .compute_minor = properties.minor,
                 .multiprocessors = properties.multiProcessorCount,
                 .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

CudaSystem InspectCuda() {
  CudaSystem system;
  system.driver = DriverText();
  system.runtime = VersionText(RuntimeVersion());
  system.cublaslt = CublasLtVersionText();
  const absl::StatusOr<const cudnn::Api*> cudnn = cudnn::Open();
  if (cudnn.ok()) system.cudnn = cudnn::VersionText(**cudnn);
  system.no_cudnn = std::string(cudnn.status().message());
  system.nccl = NcclVersionText();
  system.usable = CheckEnvironment();
  if (!system.usable.ok()) return system;
  const absl::StatusOr<int> gpus = CountGpus();
  system.usable = gpus.status();
  for (int gpu = 0; system.usable.ok() && gpu < *gpus; ++gpu) {
    absl::StatusOr<CudaGpu> described = DescribeGpu(gpu);
    if (described.ok()) {
      system.gpus.push_back(*std::move(described));
    } else {
      system.usable = described.status();
      system.gpus.clear();
    }
  }
  return system;
}

}  // namespace stagecoach::kernels
