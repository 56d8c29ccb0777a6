// The loader: the only source here that is part of the program and not of libstagecoach_cuda.so.
#include "kernels/cuda_backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/cuda_backend_entry.h"

namespace stagecoach::kernels {
namespace {

constexpr char kVariable[] = "STAGECOACH_CUDA_LIBRARY";
constexpr char kFileName[] = "libstagecoach_cuda.so";

// Returns the folder; "" if the system does not tell.
std::string FolderOfProgram() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return "";
  path.resize(static_cast<size_t>(length));
  return path.substr(0, path.rfind('/'));
}

// Returns a path, or the bare file name, which stands for wherever the system keeps libraries.
std::string FindLibrary() {
  if (const char* const named = std::getenv(kVariable); named != nullptr && *named != '\0') {
    return named;
  }
  const std::string folder = FolderOfProgram();
  // The folders as installed, as built, and with everything in one folder.
  for (const char* const place : {"/../lib/", "/../kernels/cuda/", "/"}) {
    const std::string path = absl::StrCat(folder, place, kFileName);
    if (!folder.empty() && access(path.c_str(), F_OK) == 0) return path;
  }
  return kFileName;
}

absl::Status WhyNotLoaded(const std::string& path, const std::string& error) {
  if (path == kFileName && absl::StartsWith(error, kFileName)) {
    return absl::UnavailableError(
        absl::StrCat("this Stagecoach has no CUDA backend: there is no ", kFileName,
                     " beside the program or among the system's libraries; build Stagecoach where "
                     "the CUDA toolkit is installed, or set ",
                     kVariable, " to the file"));
  }
  const bool needs_another =
      !absl::StartsWith(error, path) && absl::StrContains(error, "cannot open shared object file");
  const std::string remedy =
      needs_another ? "install that library, or add its folder to LD_LIBRARY_PATH"
                    : absl::StrCat("set ", kVariable, " to the file that belongs to this program");
  return absl::UnavailableError(
      absl::StrCat("the CUDA backend ", path, " cannot be loaded: ", error, "; ", remedy));
}

template <typename Function>
absl::StatusOr<Function*> FindSymbol(void* library, const std::string& path, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    return absl::UnavailableError(absl::StrCat(path,
                                               " is not Stagecoach's CUDA backend (it has no ",
                                               name, "); set ", kVariable, " to the right file"));
  }
  return reinterpret_cast<Function*>(symbol);
}

absl::StatusOr<CudaBackend*> LoadFrom(const std::string& path) {
  // The library is never closed: what it made may live until the end, and so may threads of the
  // libraries it uses.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return WhyNotLoaded(path, error == nullptr ? "unknown reason" : error);
  }
  ASSIGN_OR_RETURN(CudaVersionFunction * version,
                   FindSymbol<CudaVersionFunction>(library, path, kCudaVersionSymbol));
  if (absl::string_view(version()) != kCudaBackendVersion) {
    return absl::UnavailableError(absl::StrCat(path, " belongs to another program (", version(),
                                               "; this one is ", kCudaBackendVersion,
                                               "); build or install both together"));
  }
  ASSIGN_OR_RETURN(CudaBackendFunction * backend,
                   FindSymbol<CudaBackendFunction>(library, path, kCudaBackendSymbol));
  return backend();
}

}  // namespace

void RequestHardwareQueues(absl::Span<const int> gpus) {
  constexpr int kQueuesPerDevice = 8, kMostQueues = 32;
  std::map<int, int> devices;
  int most = 1;
  for (const int gpu : gpus) most = std::max(most, ++devices[gpu]);
  const int queues = std::min(most * kQueuesPerDevice, kMostQueues);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", absl::StrCat(queues).c_str(), /*replace=*/0);
}

absl::StatusOr<CudaBackend*> CudaBackend::Load() {
  static base::Mutex mutex;
  static CudaBackend* loaded = nullptr;
  base::MutexLock lock(mutex);
  // A failure is not remembered: the next request may find what is missing now.
  if (loaded == nullptr) {
    ASSIGN_OR_RETURN(loaded, LoadFrom(FindLibrary()));
  }
  return loaded;
}

}  // namespace stagecoach::kernels
