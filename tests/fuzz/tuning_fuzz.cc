#include "kernels/cuda/tuning/tuning_table.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  static const MemoryFile file;
  file.Write(input);
  return kernels::TuningTable::Open(file.path()).status();
}

}  // namespace stagecoach::fuzz
