#include "engine/session/machine/machine.h"

#include <oneapi/dnnl/dnnl.h>

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/parallel.h"
#include "base/text/units.h"
#include "kernels/cpu/cpu_device.h"

namespace stagecoach::engine {
namespace {

// Returns the value of a line "MemTotal:  8123456 kB" of /proc/meminfo; 0 if there is none.
int64_t MemoryInfoBytes(absl::string_view name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() == 3 && words[0] == name && absl::SimpleAtoi(words[1], &kibibytes)) {
      return kibibytes << 10;
    }
  }
  return 0;
}

std::string InstructionSet() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "sse4.1";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "generic";
  }
}

}  // namespace

Machine InspectMachine() {
  return {.processors = base::AvailableCpus(),
          .memory_bytes = MemoryInfoBytes("MemTotal"),
          .available_memory_bytes = MemoryInfoBytes("MemAvailable"),
          .instruction_set = InstructionSet(),
          .kernels_arch = kernels::CpuOperationsArch()};
}

absl::Status CheckHasMemory(int64_t needed_bytes) {
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  if (memory_bytes == 0 || needed_bytes <= memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "all devices together need ", base::FormatBytes(needed_bytes), ", this machine has ",
      base::FormatBytes(memory_bytes), ": use a smaller model or smaller micro-batches"));
}

bool IsLackOfMemory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

}  // namespace stagecoach::engine
