#ifndef STAGECOACH_TESTS_TOOLS_CUDA_MACHINE_H_
#define STAGECOACH_TESTS_TOOLS_CUDA_MACHINE_H_

#include <string>

#include "tests/engine/data/data_test_util.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {

// The devices that a test finds: N emulated GPUs, and a home folder of its own.
class CudaMachine {
 public:
  explicit CudaMachine(const std::string& stand_in,
                       const std::string& library = STAGECOACH_EMULATED_CUDA)
      : home_(engine::TestDirectory()),
        library_("STAGECOACH_CUDA_LIBRARY", library),
        stand_in_("STAGECOACH_CUDA_STAND_IN", stand_in),
        cache_("XDG_CACHE_HOME", home_) {}

  const std::string& home() const { return home_; }
  std::string tuning_file() const { return home_ + "/stagecoach/cuda-tuning.json"; }

 private:
  const std::string home_;
  const ScopedVariable library_, stand_in_, cache_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CUDA_MACHINE_H_
