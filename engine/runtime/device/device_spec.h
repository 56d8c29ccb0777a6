#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "partition/cost/cluster.h"

namespace stagecoach::engine {

using kernels::DeviceKind;
using kernels::Precision;

inline const char* Name(DeviceKind kind) { return kind == DeviceKind::kCuda ? "cuda" : "cpu"; }

// Describes the devices that train a model. Regular value type.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;                            // of a CPU device
  int64_t memory_bytes = 0;                   // budget per device; 0: none (on a GPU: what is free)
  Precision precision = Precision::kFloat32;  // on a CPU device, kFloat32 or kBfloat16
  // The GPU of each device; empty: device i is on GPU i. Several may be on one.
  std::vector<int> gpus;
  // The file that stores tuned choices (kernels/cuda_backend.h); "": none.
  std::string tuning_file;
  // Devices that differ, in the order of a plan's devices: the speed and the links by which the
  // model is cut, and each one's own budget and threads, in place of those above unless they are 0.
  // It may have more devices than a plan; those are not used. No devices: all are alike.
  partition::Cluster cluster = {};

  bool are_alike() const { return cluster.devices.empty(); }
  int threads_of(int index) const;
  int64_t memory_bytes_of(int index) const;
  // Returns the first `devices` devices as a planner sees them. Pre-condition: all are alike, or
  // the cluster has as many.
  partition::Cluster ClusterOf(int devices) const;
  // Returns the same without a budget, all of whose devices are alike.
  DeviceSpec Unlimited() const;
  int gpu_of(int index) const { return gpus.empty() ? index : gpus[static_cast<size_t>(index)]; }

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Returns InvalidArgument unless the cluster, if there is one, is valid (CheckCluster), has that
// many devices, and names threads only if the devices are CPUs.
absl::Status CheckClusterOf(const DeviceSpec& spec, int devices);

// Makes the device of that index. InvalidArgument: threads out of range, a negative budget, no GPU
// named for the index, a precision that the kind does not have. Unavailable: there is no such
// device, or something that it needs is not installed; says what to do.
absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const DeviceSpec& spec, int index);
// Makes a device without a budget, and with as many threads as any, on which layers are prepared
// only to learn what they take: nothing is measured, compiled or allocated for them, and they
// cannot run.
absl::StatusOr<std::unique_ptr<kernels::Device>> MakePlanningDevice(const DeviceSpec& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_
