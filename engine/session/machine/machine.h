#ifndef STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_
#define STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_

#include <cstdint>
#include <string>

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

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_MACHINE_MACHINE_H_
