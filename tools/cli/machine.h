#ifndef STAGECOACH_TOOLS_CLI_MACHINE_H_
#define STAGECOACH_TOOLS_CLI_MACHINE_H_

#include <cstdint>
#include <string>

namespace stagecoach::tools {

// What this machine offers to CPU devices.
struct Machine {
  int processors = 0;                  // that this process may run on
  int64_t memory_bytes = 0;            // 0: unknown
  int64_t available_memory_bytes = 0;  // without swapping, by the kernel's estimate; 0: unknown
  std::string instruction_set;         // the widest that oneDNN uses
};

Machine InspectMachine();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_MACHINE_H_
