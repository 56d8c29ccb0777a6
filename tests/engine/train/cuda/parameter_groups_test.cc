// Groups of parameters on GPUs.
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/grouped_runs.h"

namespace stagecoach::engine {
namespace {

TEST(CudaParameterGroups, MatchThoseOfPyTorch) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs, and there are " << NumGpus();
  ExpectGroupsToMatchPyTorch({.kind = DeviceKind::kCuda});
}

TEST(CudaParameterGroups, HaveTheSameBitsEverywhere) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs, and there are " << NumGpus();
  ExpectGroupsToHaveTheSameBitsEverywhere({.kind = DeviceKind::kCuda}, /*devices=*/2);
}

}  // namespace
}  // namespace stagecoach::engine
