#include "engine/runtime/device/device_spec.h"

#include <algorithm>
#include <numeric>

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
                                     .threads = spec.threads_of(index),
                                     .memory_limit_bytes = spec.memory_bytes_of(index),
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
                                .memory_limit_bytes = spec.memory_bytes_of(index),
                                .precision = spec.precision,
                                .tuning_file = spec.tuning_file,
                                .is_for_planning = is_for_planning});
}

}  // namespace

int DeviceSpec::threads_of(int index) const {
  const int own = are_alike() ? 0 : cluster.devices[static_cast<size_t>(index)].threads;
  return own > 0 ? own : threads;
}

int64_t DeviceSpec::memory_bytes_of(int index) const {
  const int64_t own = are_alike() ? 0 : cluster.devices[static_cast<size_t>(index)].memory_bytes;
  return own > 0 ? own : memory_bytes;
}

partition::Cluster DeviceSpec::ClusterOf(int devices) const {
  if (are_alike()) return partition::UniformCluster(devices, memory_bytes);
  std::vector<int> first(static_cast<size_t>(devices));
  std::iota(first.begin(), first.end(), 0);
  partition::Cluster own = cluster.Keep(first);
  for (int i = 0; i < devices; ++i) {
    own.devices[static_cast<size_t>(i)].memory_bytes = memory_bytes_of(i);
  }
  return own;
}

DeviceSpec DeviceSpec::Unlimited() const {
  DeviceSpec alike = *this;
  alike.memory_bytes = 0;
  alike.cluster = {};
  return alike;
}

absl::Status CheckClusterOf(const DeviceSpec& spec, int devices) {
  if (spec.are_alike()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCluster(spec.cluster));
  if (spec.cluster.size() < devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the cluster has ", spec.cluster.size(), spec.cluster.size() == 1 ? " device" : " devices",
        ", and ", devices, " are needed"));
  }
  if (spec.kind == DeviceKind::kCpu) return absl::OkStatus();
  for (const partition::ClusterDevice& device : spec.cluster.devices) {
    if (device.threads == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("device ", device.name, " of the cluster has ",
                                                   device.threads,
                                                   " threads, which only CPU devices have"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const DeviceSpec& spec, int index) {
  return Make(spec, index, /*is_for_planning=*/false);
}

absl::StatusOr<std::unique_ptr<kernels::Device>> MakePlanningDevice(const DeviceSpec& spec) {
  DeviceSpec unlimited = spec.Unlimited();
  for (int i = 0; i < spec.cluster.size(); ++i) {
    unlimited.threads = std::max(unlimited.threads, spec.threads_of(i));
  }
  return Make(unlimited, 0, /*is_for_planning=*/true);
}

}  // namespace stagecoach::engine
