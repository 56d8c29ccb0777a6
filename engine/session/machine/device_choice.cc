#include "engine/session/machine/device_choice.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "engine/session/machine/machine.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::engine {
namespace {

constexpr char kMoreMemory[] =
    "stop other programs on that GPU, spread the model over more GPUs, or use smaller "
    "micro-batches";

Precision PrecisionOf(const std::string& name) {
  for (const Precision precision : {Precision::kTf32, Precision::kBfloat16}) {
    if (name == PrecisionName(precision)) return precision;
  }
  return Precision::kFloat32;
}

// Returns a list that puts every device on GPU 0.
std::string AllOnOneGpu(int devices) {
  constexpr int kMaxSpelled = 8;
  if (devices > kMaxSpelled) return "0,0,...";
  return absl::StrJoin(std::vector<int>(static_cast<size_t>(devices), 0), ",");
}

// Returns Unavailable unless there is a usable GPU for each device.
absl::Status CheckGpus(const DeviceSpec& spec, int devices) {
  kernels::RequestHardwareQueues(spec.gpus);
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  const kernels::CudaSystem system = backend->Inspect();
  RETURN_IF_ERROR(system.usable);
  const auto gpus = static_cast<int>(system.gpus.size());
  for (int device = 0; device < devices; ++device) {
    const int index = spec.gpu_of(device);
    if (index >= gpus) {
      return absl::UnavailableError(absl::StrCat(
          "device ", device, " is to be on GPU ", index, ", but there ",
          gpus == 1 ? "is 1 GPU" : absl::StrCat("are ", gpus, " GPUs"),
          "; use fewer stages, or --gpus ", AllOnOneGpu(devices), " to put them all on one"));
    }
    const kernels::CudaGpu& gpu = system.gpus[static_cast<size_t>(index)];
    if (gpu.compute_major < kernels::kLeastComputeMajor) {
      return absl::UnavailableError(
          absl::StrCat("GPU ", index, " (", gpu.name, ") has compute capability ",
                       gpu.compute_major, ".", gpu.compute_minor, ", and ",
                       kernels::kLeastComputeMajor, ".0 is needed; name others with --gpus"));
    }
  }
  return absl::OkStatus();
}

// Returns $XDG_CACHE_HOME/stagecoach/cuda-tuning.json, or the same below ~/.cache; "" if there is
// no home.
std::string DefaultTuningFile() {
  constexpr char kName[] = "stagecoach/cuda-tuning.json";
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return absl::StrCat(cache, "/", kName);
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.cache/", kName) : "";
}

// Returns the default file if it can be written; otherwise "", and a notice says why.
std::string UsableDefaultTuningFile(const Notices& notices) {
  const std::string path = DefaultTuningFile();
  std::error_code error;
  if (path.empty() || std::filesystem::exists(path, error)) return path;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const absl::Status writable = base::CheckWritable(path);
  if (writable.ok()) return path;
  notices.Tell(absl::StrCat(
      "using the first choice of algorithms, since there is no place for a tuning file: ",
      writable.message(), "; name one with --tuning"));
  return "";
}

absl::StatusOr<std::string> TuningFileOf(const DeviceChoice& choice, const Notices& notices) {
  if (choice.tuning == "none") return "";
  if (choice.tuning == "default") return UsableDefaultTuningFile(notices);
  std::error_code error;
  if (!std::filesystem::exists(choice.tuning, error)) {
    RETURN_IF_ERROR(base::Annotate(base::CheckWritable(choice.tuning), "--tuning"));
  }
  return choice.tuning;
}

// For those who mean a number of GPUs.
constexpr char kGpusAreNoNumber[] =
    "; --gpus lists GPUs, as 0,1 does: how many are used is --devices";

// Refuses flags that do not go together, whatever devices there are.
absl::Status CheckFlags(const DeviceChoice& choice, int devices) {
  if (choice.kind == "cpu" && choice.precision == "tf32") {
    return base::UsageError(
        "--precision tf32 needs --device cuda; CPU devices compute with fp32 or bf16");
  }
  if (choice.kind == "cpu" &&
      (!choice.gpus.empty() || choice.exchange == "nccl" || choice.tuning != "default")) {
    return base::UsageError(
        absl::StrCat("--gpus, --exchange nccl and --tuning are for --device cuda",
                     choice.gpus.size() == 1 ? kGpusAreNoNumber : ""));
  }
  if (!choice.gpus.empty() && static_cast<int>(choice.gpus.size()) < devices) {
    return base::UsageError(absl::StrCat(
        "--gpus names ", choice.gpus.size(), choice.gpus.size() == 1 ? " GPU" : " GPUs", " for ",
        devices, " devices; name one for each", choice.gpus.size() == 1 ? kGpusAreNoNumber : ""));
  }
  return absl::OkStatus();
}

// Returns Unavailable if CPU devices here do not compute with the precision.
absl::Status CheckCpuPrecision(const DeviceChoice& choice) {
  if (choice.precision == "fp32") return absl::OkStatus();
  const std::string needed = absl::StrCat("--precision ", choice.precision);
  if (choice.precision == "tf32") {
    return absl::UnavailableError(absl::StrCat(needed, " needs them"));
  }
  return base::Annotate(kernels::CheckBfloat16OnCpu(), needed);
}

// More threads than cores only take turns.
void TellOfFewCores(const DeviceChoice& choice, const Notices& notices) {
  const int cores = InspectMachine().processors;
  if (choice.threads <= cores) return;
  notices.Tell(
      absl::StrCat("--threads-per-device ", choice.threads, ": there are only ", cores,
                   cores == 1 ? " core" : " cores",
                   " here, so the threads of each device take turns, and steps are slower"));
}

}  // namespace

absl::StatusOr<DeviceSpec> Resolve(const DeviceChoice& choice, int devices,
                                   const Notices& notices) {
  RETURN_IF_ERROR(CheckFlags(choice, devices));
  const DeviceSpec cpu = {.threads = choice.threads, .precision = PrecisionOf(choice.precision)};
  if (choice.kind == "cpu") {
    RETURN_IF_ERROR(CheckCpuPrecision(choice));
    TellOfFewCores(choice, notices);
    return cpu;
  }
  DeviceSpec cuda = {
      .kind = DeviceKind::kCuda, .precision = PrecisionOf(choice.precision), .gpus = choice.gpus};
  const absl::Status status = CheckGpus(cuda, devices);
  if (status.ok()) {
    ASSIGN_OR_RETURN(cuda.tuning_file, TuningFileOf(choice, notices));
    return cuda;
  }
  RETURN_IF_ERROR(FallBackToCpu(choice, status, notices));
  TellOfFewCores(choice, notices);
  return cpu;
}

absl::Status FallBackToCpu(const DeviceChoice& choice, const absl::Status& why,
                           const Notices& notices) {
  // Anything else that is not implemented is missing on CPU devices as well.
  const bool lacks_kernel =
      absl::IsUnimplemented(why) && absl::StrContains(why.message(), "no CUDA kernel");
  const bool is_of_cuda = absl::IsUnavailable(why) || lacks_kernel;
  if (choice.kind != "auto" || !is_of_cuda) return why;
  // A feature that only GPUs have is not silently dropped.
  const absl::Status precision = CheckCpuPrecision(choice);
  if (!precision.ok()) {
    return base::Annotate(
        why, absl::StrCat("--device auto can use no CUDA devices, and ", precision.message()));
  }
  notices.Tell(absl::StrCat("--device auto: using CPU devices, since ", why.message()));
  return absl::OkStatus();
}

void TellOfMissingGpus(const DeviceChoice& choice, DeviceSpec spec, int devices,
                       const Notices& notices) {
  if (choice.kind != "auto" || spec.kind != DeviceKind::kCuda) return;
  if (static_cast<int>(spec.gpus.size()) < devices) spec.gpus.clear();
  const absl::Status status = CheckGpus(spec, devices);
  if (status.ok()) return;
  notices.Tell(
      absl::StrCat("--device auto: a plan for CUDA devices, though a run here would be on "
                   "CPU devices, since ",
                   status.message()));
}

Exchange ExchangeOf(const DeviceChoice& choice, const DeviceSpec& spec) {
  if (spec.kind == DeviceKind::kCpu) return Exchange::kAuto;
  if (choice.exchange == "copies") return Exchange::kCopies;
  if (choice.exchange == "nccl") return Exchange::kNccl;
  return Exchange::kAuto;
}

absl::Status CheckGpuMemory(const DeviceSpec& spec, absl::Span<const int64_t> bytes) {
  if (spec.kind != DeviceKind::kCuda) return absl::OkStatus();
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  const kernels::CudaSystem system = backend->Inspect();
  RETURN_IF_ERROR(system.usable);
  std::vector<int64_t> needed_bytes(system.gpus.size());
  std::vector<bool> has_budget(system.gpus.size(), true);
  for (int device = 0; device < static_cast<int>(bytes.size()); ++device) {
    const auto gpu = static_cast<size_t>(spec.gpu_of(device));
    if (gpu >= needed_bytes.size()) continue;
    needed_bytes[gpu] += bytes[static_cast<size_t>(device)];
    if (spec.memory_bytes_of(device) == 0) has_budget[gpu] = false;
  }
  for (size_t gpu = 0; gpu < needed_bytes.size(); ++gpu) {
    if (needed_bytes[gpu] == 0) continue;
    ASSIGN_OR_RETURN(const int64_t free_bytes, backend->FreeBytes(static_cast<int>(gpu)));
    const int64_t available_bytes =
        has_budget[gpu] ? free_bytes : kernels::DefaultBudgetBytes(free_bytes);
    if (needed_bytes[gpu] <= available_bytes) continue;
    return absl::UnavailableError(absl::StrCat(
        base::FormatBytes(needed_bytes[gpu]), " are needed on GPU ", gpu, ", which has ",
        base::FormatBytes(available_bytes), " available; ", kMoreMemory));
  }
  return absl::OkStatus();
}

absl::Status OnDevices(const DeviceSpec& spec, absl::Status status) {
  if (spec.kind != DeviceKind::kCuda || !absl::IsResourceExhausted(status)) return status;
  // Messages are "cause; remedy", except those of the libraries.
  const bool has_remedy = absl::StrContains(status.message(), "; ");
  return absl::UnavailableError(absl::StrCat("a GPU has too little memory: ", status.message(),
                                             has_remedy ? "" : "; ",
                                             has_remedy ? "" : kMoreMemory));
}

}  // namespace stagecoach::engine
