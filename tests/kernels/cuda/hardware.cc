// In the place of the stand-ins where the tests of kernels run on a GPU: the machine is what it is.
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {

// A GPU has its own order of threads, another one in each run.
void Reset(const StandInOptions&) {}

// What is left is not counted.
Live live() { return {}; }

}  // namespace stagecoach::testing::cuda
