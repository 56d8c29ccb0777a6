#include "engine/runtime/device/device_spec.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::engine {

namespace {

absl::StatusOr<std::unique_ptr<kernels::Device>> Make(const DeviceSpec& spec, int index,
                                                      bool is_for_planning) {
  if (spec.kind == DeviceKind::kCpu) {
    return kernels::CreateCpuDevice({.index = index,
                                     .threads = spec.threads,
                                     .memory_limit_bytes = spec.memory_bytes,
                                     .precision = spec.precision});
  }
  if (!spec.gpus.empty() && static_cast<size_t>(index) >= spec.gpus.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", index, " has no GPU: ", spec.gpus.size(), " are named"));
  }
  kernels::RequestHardwareQueues(spec.gpus);
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->CreateDevice({.gpu = spec.gpu_of(index),
                                .name = absl::StrCat("cuda:", index),
                                .memory_limit_bytes = spec.memory_bytes,
                                .precision = spec.precision,
                                .tuning_file = spec.tuning_file,
                                .is_for_planning = is_for_planning});
}

}  // namespace

absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const DeviceSpec& spec, int index) {
  return Make(spec, index, /*is_for_planning=*/false);
}

absl::StatusOr<std::unique_ptr<kernels::Device>> MakePlanningDevice(const DeviceSpec& spec) {
  DeviceSpec unlimited = spec;
  unlimited.memory_bytes = 0;
  return Make(unlimited, 0, /*is_for_planning=*/true);
}

}  // namespace stagecoach::engine
