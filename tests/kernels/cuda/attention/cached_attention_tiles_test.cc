#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/attention/cached_attention_kernels.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/kernels/ops/attention_bounds.h"
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

struct Case {
  int64_t part_positions;
  int64_t window = 0;
  float scale = 0.0F, score_cap = 0.0F;
};

// Parts that are smaller than for any shape, so that there are several.
class CachedAttentionTiles : public ::testing::TestWithParam<Case> {
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
                                            .window = shape_.window,
                                            .scale = 1.0F / std::sqrt(static_cast<float>(D)),
                                            .score_cap = shape_.score_cap,
                                            .inverse_cap = 1.0F / shape_.score_cap};
      if (shape_.scale > 0.0F) arguments.scale = shape_.scale;
      EXPECT_TRUE(FitsCachedAttentionTiles(ElementType::kBfloat16, arguments));
      CachedAttentionParts parts = CachedAttentionTileParts(arguments);
      parts.positions = part_positions;
      parts.count = (arguments.seen_positions() + part_positions - 1) / part_positions;
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

  const AttentionShape shape_ = {.positions = 75,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_size = 64,
                                 .window = GetParam().window,
                                 .scale = GetParam().scale,
                                 .score_cap = GetParam().score_cap};
  const std::vector<float> qkv_ = RoundedTo(kType, RandomNormal(shape_.positions * 8 * 64, 1));
};

TEST_P(CachedAttentionTiles, OfSeveralPartsMatchReference) {
  const auto exact = reference::AttentionForward(shape_, ToDouble(qkv_));
  Vector bounds = BoundsOfAttention(shape_, ToDouble(qkv_), exact, kType).y;
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = StoredBound(exact.y[i], bounds[i], kType);
  }
  EXPECT_THAT(InParts(GetParam().part_positions), CloseTo(exact.y, bounds));
}

std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) {
  const Case& test = info.param;
  return absl::StrCat(test.part_positions, test.window > 0 ? "_window" : "",
                      test.window > 0 ? absl::StrCat(test.window) : "",
                      test.score_cap > 0.0F ? "_capped" : "");
}

// Windows within a part, over several, and that exceed all positions of the first calls.
INSTANTIATE_TEST_SUITE_P(Positions, CachedAttentionTiles,
                         ::testing::Values(Case{20}, Case{40}, Case{75}, Case{20, 1}, Case{20, 7},
                                           Case{20, 33}, Case{40, 60}, Case{75, 20},
                                           Case{20, 0, 0.25F, 2.0F}, Case{20, 33, 0.0F, 2.0F}),
                         NameOfCase);

TEST(CachedAttentionTileParts, AreThoseOfAWindow) {
  CachedAttentionArguments arguments = {.rows = 8,
                                        .positions = 100'000,
                                        .heads = 12,
                                        .kv_heads = 12,
                                        .head_size = 64,
                                        .window = 2041};
  EXPECT_EQ(CachedAttentionTileParts(arguments).count, 1);
  EXPECT_EQ(CachedAttentionWorkspaceBytes(ElementType::kBfloat16, arguments), 0);
  arguments.window = 8192;
  const CachedAttentionParts parts = CachedAttentionTileParts(arguments);
  EXPECT_GT(parts.count, 1);
  EXPECT_GE(parts.count * parts.positions, 8192 + 7);
  EXPECT_LT(parts.count * parts.positions, 2 * 8192);
}

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
