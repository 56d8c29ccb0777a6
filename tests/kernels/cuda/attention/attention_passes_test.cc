// Properties of attention's passes over memory that tests of the operation cannot see.
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"

namespace stagecoach::kernels::attention_passes_test {
namespace {

using testing::EmulatedGpu;

// An angle in float would be off by up to 1/256 of a radian there.
TEST(CudaRotary, TurnsArePreciseAtFarPositions) {
  constexpr int64_t kPositions = 131072, kHeadSize = 4;
  constexpr double kBase = 500000.0;
  EmulatedGpu gpu;
  const Tensor turns = gpu.Result(DType::kFloat32, kPositions * kHeadSize);
  ASSERT_EQ(LaunchRotaryTurns(gpu.stream(), {.positions = kPositions,
                                             .head_size = kHeadSize,
                                             .rotary_size = kHeadSize,
                                             .log2_base = std::log2(kBase),
                                             .turns = static_cast<float2*>(turns.data)}),
            cudaSuccess);
  const std::vector<double> values = gpu.Values(turns);
  for (const int64_t t : {0, 1, 1000, 65537, 131071}) {
    for (int64_t i = 0; i < kHeadSize / 2; ++i) {
      const double angle = static_cast<double>(t) * std::pow(kBase, -2.0 * i / kHeadSize);
      const auto at = static_cast<size_t>(t * kHeadSize + 2 * i);
      EXPECT_NEAR(values[at], std::cos(angle), std::ldexp(1.0, -24)) << t << ", " << i;
      EXPECT_NEAR(values[at + 1], std::sin(angle), std::ldexp(1.0, -24)) << t << ", " << i;
    }
  }
}

}  // namespace
}  // namespace stagecoach::kernels::attention_passes_test
