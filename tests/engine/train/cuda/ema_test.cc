// Moving averages of parameters on GPUs.
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/ema_runs.h"

namespace stagecoach::engine {
namespace {

TEST(CudaAverages, FollowTheirFormula) {
  if (NumGpus() < 1) GTEST_SKIP() << "needs a GPU";
  ExpectAveragesToFollowTheirFormula({.kind = DeviceKind::kCuda});
}

TEST(CudaAverages, FollowTheirFormulaInBf16) {
  if (NumGpus() < 1) GTEST_SKIP() << "needs a GPU";
  ExpectAveragesToFollowTheirFormula(
      {.kind = DeviceKind::kCuda, .precision = Precision::kBfloat16});
}

TEST(CudaAverages, AreThoseOfPyTorch) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs, and there are " << NumGpus();
  ExpectAveragesToMatchPyTorch({.kind = DeviceKind::kCuda});
}

TEST(CudaAverages, HaveTheSameBitsEverywhere) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs, and there are " << NumGpus();
  ExpectAveragesToHaveTheSameBitsEverywhere({.kind = DeviceKind::kCuda}, /*devices=*/2);
}

}  // namespace
}  // namespace stagecoach::engine
