// Linked into tests; makes the emulated CUDA backend the default.
#include <cstdlib>

namespace {

[[maybe_unused]] const int kChosen =
    setenv("STAGECOACH_CUDA_LIBRARY", STAGECOACH_EMULATED_CUDA, /*replace=*/0);

}  // namespace
