#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/cached_attention_kernels.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/attention_bounds.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::cached_attention_tiles_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

constexpr DType kType = DType::kBfloat16;

// Parts that are smaller than for any shape, so that there are several.
class CachedAttentionTiles : public ::testing::TestWithParam<int64_t> {
 protected:
  // Returns y of all positions, eight at a time.
  Vector InParts(int64_t part_positions) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      constexpr int64_t kRows = 8;
      const int64_t H = shape_.heads, G = shape_.kv_heads, D = shape_.head_size;
      CachedAttentionArguments arguments = {.rows = kRows,
                                            .positions = shape_.positions,
                                            .heads = H,
                                            .kv_heads = G,
                                            .head_size = D,
                                            .scale = 1.0F / std::sqrt(static_cast<float>(D))};
      EXPECT_TRUE(FitsCachedAttentionTiles(ElementType::kBfloat16, arguments));
      CachedAttentionParts parts = CachedAttentionTileParts(arguments);
      parts.positions = part_positions;
      parts.count = (shape_.positions + part_positions - 1) / part_positions;
      arguments.cache = gpu.Result(kType, 2 * G * shape_.positions * D).data;
      arguments.workspace =
          static_cast<float*>(gpu.Result(DType::kFloat32, kRows * H * parts.count * (D + 2)).data);
      Vector y;
      for (int64_t first = 0; first < shape_.positions; first += kRows) {
        const int64_t inputs = (H + 2 * G) * D;
        std::vector<float> qkv(static_cast<size_t>(kRows * inputs));
        const int64_t rows = std::min(kRows, shape_.positions - first);
        std::copy_n(qkv_.begin() + first * inputs, rows * inputs, qkv.begin());
        arguments.qkv = gpu.Operand(kType, qkv).data;
        arguments.first_position = gpu.Upload<int64_t>({first});
        const Tensor own = gpu.Result(kType, kRows * H * D);
        arguments.y = own.data;
        EXPECT_EQ(LaunchCachedAttentionTiles(gpu.stream(), arguments, parts), cudaSuccess);
        if (parts.count > 1) {
          EXPECT_EQ(
              LaunchCachedAttentionSum(gpu.stream(), ElementType::kBfloat16, arguments, parts),
              cudaSuccess);
        }
        const Vector values = gpu.Values(own);
        y.insert(y.end(), values.begin(), values.begin() + rows * H * D);
      }
      return std::vector<Vector>{y};
    })[0];
  }

  const AttentionShape shape_ = {.positions = 75, .heads = 4, .kv_heads = 2, .head_size = 64};
  const std::vector<float> qkv_ = RoundedTo(kType, RandomNormal(shape_.positions * 8 * 64, 1));
};

TEST_P(CachedAttentionTiles, OfSeveralPartsMatchReference) {
  const auto exact = reference::AttentionForward(shape_, ToDouble(qkv_));
  Vector bounds = BoundsOfAttention(shape_, ToDouble(qkv_), exact, kType).y;
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = StoredBound(exact.y[i], bounds[i], kType);
  }
  EXPECT_THAT(InParts(GetParam()), CloseTo(exact.y, bounds));
}

INSTANTIATE_TEST_SUITE_P(Positions, CachedAttentionTiles, ::testing::Values(20, 40, 75),
                         ::testing::PrintToStringParamName());

TEST(CachedAttentionTileParts, AreOneForAFewPositionsAndAlikeForMany) {
  CachedAttentionArguments arguments = {.rows = 8, .heads = 12, .kv_heads = 12, .head_size = 64};
  for (const int64_t positions : {1, 2048, 2049, 4096, 100'000}) {
    arguments.positions = positions;
    const CachedAttentionParts parts = CachedAttentionTileParts(arguments);
    EXPECT_EQ(parts.count == 1, positions <= 2048) << positions;
    EXPECT_EQ(CachedAttentionWorkspaceBytes(ElementType::kBfloat16, arguments) == 0,
              positions <= 2048);
    EXPECT_LE(parts.count, 128 / 12) << positions;
    EXPECT_GE(parts.count * parts.positions, positions);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::cached_attention_tiles_test
