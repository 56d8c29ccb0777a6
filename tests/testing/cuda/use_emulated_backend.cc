// Linked into tests: where nobody says otherwise, the CUDA backend is the emulated one.
#include <cstdlib>

namespace {

[[maybe_unused]] const int kChosen =
    setenv("STAGECOACH_CUDA_LIBRARY", STAGECOACH_EMULATED_CUDA, /*replace=*/0);

}  // namespace
