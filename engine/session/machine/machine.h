#ifndef STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_
#define STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"

namespace stagecoach::engine {

// The resources of this machine for CPU devices.
struct Machine {
  int processors = 0;                  // those that this process may run on
  int64_t memory_bytes = 0;            // 0: unknown
  int64_t available_memory_bytes = 0;  // without swapping, by the kernel's estimate; 0: unknown
  std::string instruction_set;         // the widest that oneDNN uses
  std::string kernels_arch;            // the processors that our own kernels are compiled for
};

Machine InspectMachine();

// Returns ResourceExhausted if this machine has less memory than all its CPU devices together need.
absl::Status CheckHasMemory(int64_t needed_bytes);

// Returns whether an error of planning is one of memory, which more devices may cure: the budget's,
// this machine's (ResourceExhausted) or a GPU's (Unavailable).
bool IsLackOfMemory(const absl::Status& status);

// Returns `work(devices)`, an absl::StatusOr, for the fewest devices that have enough memory, of at
// most `most`. If no number of them has, returns the error of one device.
template <typename Work>
std::invoke_result_t<Work, int> OverFewestDevices(int most, Work work) {
  absl::Status first = absl::OkStatus();
  for (int devices = 1; devices <= most; ++devices) {
    auto result = work(devices);
    if (result.ok()) return result;
    if (first.ok()) first = result.status();
    if (!IsLackOfMemory(result.status())) break;
  }
  return first;
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_
