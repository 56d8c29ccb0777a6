#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace stagecoach::engine {

using kernels::DeviceKind;
using kernels::Precision;

inline const char* Name(DeviceKind kind) { return kind == DeviceKind::kCuda ? "cuda" : "cpu"; }

// Describes each device that trains a model. Regular value type.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;                            // of a CPU device
  int64_t memory_bytes = 0;                   // budget per device; 0: none (on a GPU: what is free)
  Precision precision = Precision::kFloat32;  // on a CPU device, kFloat32 or kBfloat16
  // The GPU of each device; empty: device i is on GPU i. Several may be on one.
  std::vector<int> gpus;
  // The file that stores tuned choices (kernels/cuda_backend.h); "": none.
  std::string tuning_file;

  int gpu_of(int index) const { return gpus.empty() ? index : gpus[static_cast<size_t>(index)]; }

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Makes the device of that index. InvalidArgument: threads out of range, a negative budget, no GPU
// named for the index, a precision that the kind does not have. Unavailable: there is no such
// device, or something that it needs is not installed; says what to do.
absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const DeviceSpec& spec, int index);
// Makes a device like device 0 but without a budget, on which layers are prepared only to learn
// what they take: nothing is measured, compiled or allocated for them, and they cannot run.
absl::StatusOr<std::unique_ptr<kernels::Device>> MakePlanningDevice(const DeviceSpec& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_SPEC_H_
