#ifndef STAGECOACH_ENGINE_SESSION_MACHINE_DEVICE_CHOICE_H_
#define STAGECOACH_ENGINE_SESSION_MACHINE_DEVICE_CHOICE_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/session/machine/notices.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The devices that a model is to be trained on, as a caller chooses them.
struct DeviceChoice {
  std::string kind = "cpu";  // cpu, cuda or auto
  int threads = 1;           // of a CPU device
  std::string precision = "fp32";
  std::vector<int> gpus;           // of each device; empty: device i is on GPU i
  std::string exchange = "auto";   // auto, copies or nccl
  std::string tuning = "default";  // default, none or a file

  // Falls back to CPU devices if "auto" finds no suitable GPU.
  void UseCpu() {
    kind = "cpu";
    gpus.clear();
    exchange = "auto";
    tuning = "default";
  }
};

// Returns what each of `devices` devices is, without a budget. "auto" is CUDA if there are enough
// GPUs, and otherwise the CPU; a notice then says why. On CUDA, makes the folder of the default
// tuning file. Unavailable if there is no GPU for every device, InvalidArgument for choices that
// exclude each other.
absl::StatusOr<DeviceSpec> Resolve(const DeviceChoice& choice, int devices, const Notices& notices);

// Returns, for "auto", OK if CUDA devices cannot be used because of `why` (Unavailable, or a layer
// that has no CUDA kernel) and CPU devices can be used instead, which a notice says. Otherwise
// returns an error, such as `why` itself.
absl::Status FallBackToCpu(const DeviceChoice& choice, const absl::Status& why,
                           const Notices& notices);

// Returns `work(choice)`, an absl::StatusOr. For "auto", if its error shows that CUDA devices
// cannot be used (FallBackToCpu), returns the result on CPU devices instead.
template <typename Work>
std::invoke_result_t<Work, const DeviceChoice&> WithFallBack(const DeviceChoice& choice,
                                                             const Notices& notices, Work work) {
  auto result = work(choice);
  if (result.ok() || choice.kind != "auto") return result;
  RETURN_IF_ERROR(FallBackToCpu(choice, result.status(), notices));
  DeviceChoice cpu = choice;
  cpu.UseCpu();
  return work(cpu);
}

// For a plan, rather than a run, whose "auto" was resolved to GPUs: a notice says if a run on
// `devices` devices would use the CPU here.
void TellOfMissingGpus(const DeviceChoice& choice, DeviceSpec spec, int devices,
                       const Notices& notices);

// Returns how devices that were resolved to `spec` exchange tensors.
Exchange ExchangeOf(const DeviceChoice& choice, const DeviceSpec& spec);

// Returns Unavailable, with a remedy, if device i takes `bytes[i]` and a GPU has less free memory
// than its devices take. What libraries take besides is not known yet, so OK is no promise. It is
// OK for CPU devices.
absl::Status CheckGpuMemory(const DeviceSpec& spec, absl::Span<const int64_t> bytes);

// Returns an error of work on devices of `spec`: if a GPU ran out of memory, as Unavailable and
// with a remedy; otherwise unchanged.
absl::Status OnDevices(const DeviceSpec& spec, absl::Status status);

template <typename T>
absl::StatusOr<T> OnDevices(const DeviceSpec& spec, absl::StatusOr<T> result) {
  if (!result.ok()) return OnDevices(spec, std::move(result).status());
  return result;
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_MACHINE_DEVICE_CHOICE_H_
