#ifndef STAGECOACH_TOOLS_CLI_MACHINE_H_
#define STAGECOACH_TOOLS_CLI_MACHINE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace stagecoach::tools {

// What this machine offers to CPU devices.
struct Machine {
  int processors = 0;                  // that this process may run on
  int64_t memory_bytes = 0;            // 0: unknown
  int64_t available_memory_bytes = 0;  // without swapping, by the kernel's estimate; 0: unknown
  std::string instruction_set;         // the widest that oneDNN uses
  std::string kernels_arch;            // the processors that our own kernels are compiled for
};

Machine InspectMachine();

// ResourceExhausted if this machine has less memory than all its CPU devices together need.
absl::Status CheckHasMemory(int64_t needed_bytes);

// Whether an error of planning is one of memory, which more devices may cure: of the budget, this
// machine (ResourceExhausted) or a GPU (Unavailable).
bool IsLackOfMemory(const absl::Status& status);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_MACHINE_H_
