#include "kernels/cuda/products/tuning.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  static const MemoryFile file;
  file.Write(input);
  const absl::Status opened = kernels::TuningTable::Open(file.path()).status();
  if (!opened.ok()) CheckRefusal(opened);
}

}  // namespace stagecoach::fuzz
