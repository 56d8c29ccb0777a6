#ifndef STAGECOACH_TOOLS_CLI_DEVICE_CHOICE_H_
#define STAGECOACH_TOOLS_CLI_DEVICE_CHOICE_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/device/device_spec.h"
#include "engine/train/trainer.h"
#include "tools/cli/cli11_fwd.h"

namespace stagecoach::tools {

// On what devices a model is to be trained, as the flags say it.
struct DeviceChoice {
  std::string kind = "cpu";  // cpu, cuda or auto
  int threads = 1;           // of a CPU device
  std::string precision = "fp32";
  std::vector<int> gpus;           // of each device; empty: device i is on GPU i
  std::string exchange = "auto";   // auto, copies or nccl
  std::string tuning = "default";  // default, none or a file

  // Where "auto" finds no GPU that will do.
  void UseCpu() {
    kind = "cpu";
    gpus.clear();
    exchange = "auto";
    tuning = "default";
  }
};

// Adds --device, --precision, --gpus, --exchange, --tuning and --threads-per-device. `choice` must
// outlive the parse.
void AddDeviceFlags(CLI::App& app, DeviceChoice& choice);

// What each of `devices` devices is, without a budget. "auto" is CUDA if there are GPUs enough, and
// else the CPU, of which one line on stderr tells the reason. On CUDA, makes the folder of the
// default tuning file. Errors are marked with their origin (tools/cli/exit_status.h): Unavailable
// if there is no GPU for every device, InvalidArgument for flags that do not go together.
absl::StatusOr<engine::DeviceSpec> Resolve(const DeviceChoice& choice, int devices);

// For "auto", if CUDA devices cannot be used because of `why` (Unavailable, or a layer that has no
// CUDA kernel): OK if CPU devices can be used instead, which one line on stderr reports. Otherwise
// an error, such as `why` itself.
absl::Status FallBackToCpu(const DeviceChoice& choice, const absl::Status& why);

// `work(choice)`, an absl::StatusOr. For "auto", if its error shows that CUDA devices cannot be
// used (FallBackToCpu), the result on CPU devices instead. Errors of `work` are marked with their
// origin.
template <typename Work>
std::invoke_result_t<Work, const DeviceChoice&> WithFallBack(const DeviceChoice& choice,
                                                             Work work) {
  auto result = work(choice);
  if (result.ok() || choice.kind != "auto") return result;
  RETURN_IF_ERROR(FallBackToCpu(choice, result.status()));
  DeviceChoice cpu = choice;
  cpu.UseCpu();
  return work(cpu);
}

// Of "auto" that was resolved to GPUs, for a plan and not for a run: one line on stderr if a run on
// so many devices would take the CPU here.
void TellOfMissingGpus(const DeviceChoice& choice, engine::DeviceSpec spec, int devices);

// For devices that were resolved to `spec`.
engine::Exchange ExchangeOf(const DeviceChoice& choice, const engine::DeviceSpec& spec);

// Unavailable, with what to do, if device i takes `bytes[i]` and a GPU has less free than what is
// to be on it. What the libraries take besides is not known yet, so OK is no promise. CPU devices:
// OK.
absl::Status CheckGpuMemory(const engine::DeviceSpec& spec, absl::Span<const int64_t> bytes);

// An error of work on devices of `spec`: if a GPU's memory gave out, as Unavailable and with what
// to do; else as it is.
absl::Status OnDevices(const engine::DeviceSpec& spec, absl::Status status);

template <typename T>
absl::StatusOr<T> OnDevices(const engine::DeviceSpec& spec, absl::StatusOr<T> result) {
  if (!result.ok()) return OnDevices(spec, std::move(result).status());
  return result;
}

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_DEVICE_CHOICE_H_
