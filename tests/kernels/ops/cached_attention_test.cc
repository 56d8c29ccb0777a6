#include "kernels/ops/cached_attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/ops/attention_bounds.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels::cached_attention_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

// A sequence that arrives `rows` positions at a time, and must produce what attention over all of
// it at once does.
struct SequenceCase {
  CachedAttentionShape shape;
  float deviation = 1.0F;

  AttentionShape whole() const {
    return {.positions = shape.positions,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_size = shape.head_size,
            .rotary_base = shape.rotary_base,
            .rotary_scaling = shape.rotary_scaling,
            .rotary_size = shape.rotary_size,
            .window = shape.window,
            .scale = shape.scale,
            .score_cap = shape.score_cap};
  }
  int64_t inputs() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_size; }
  int64_t outputs() const { return shape.heads * shape.head_size; }
  std::vector<float> Qkv() const {
    std::vector<float> qkv = RandomNormal(shape.positions * inputs(), 1);
    for (float& value : qkv) value *= deviation;
    return qkv;
  }
};

std::string NameOf(const SequenceCase& test) {
  const CachedAttentionShape& shape = test.shape;
  return absl::StrCat(shape.rows, "of", shape.positions, "_", shape.heads, "of", shape.kv_heads,
                      "x", shape.head_size, shape.rotary_scaling.pairs != 0 ? "_scaled" : "",
                      shape.window == 0 ? "" : absl::StrCat("_window", shape.window),
                      shape.scale != 0.0F ? "_scale" : "",
                      shape.score_cap != 0.0F ? "_capped" : "");
}

class CachedAttention : public OpTest<SequenceCase> {
 protected:
  const CachedAttentionShape& extents() const { return shape().shape; }

  // Returns y of all positions, and of those beyond the end that the last call has.
  Vector OneAfterTheOther(const std::vector<float>& qkv) const {
    const int64_t inputs = shape().inputs();
    const OpResults results = Results([&](OpBench& bench) {
      CachedAttentionOp& op = bench.Create(extents());
      std::byte* const cache = bench.Workspace(op.cache_bytes());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      std::vector<Tensor> all;
      for (int64_t first = 0; first < extents().positions; first += extents().rows) {
        // Padding is NaN.
        std::vector<float> x(static_cast<size_t>(extents().rows * inputs),
                             std::numeric_limits<float>::quiet_NaN());
        const int64_t rows = std::min(extents().rows, extents().positions - first);
        std::copy_n(qkv.begin() + first * inputs, rows * inputs, x.begin());
        const Tensor operand = bench.Operand(Shape{extents().rows, inputs}, x);
        all.push_back(bench.Result(Shape{extents().rows, shape().outputs()}));
        const CachedRow* const row = bench.Place(CachedRow{.position = first});
        bench.Run([&](Stream& stream) {
          return op.Forward(stream, row, operand, cache, all.back(), workspace);
        });
      }
      return all;
    });
    Vector y;
    for (const Vector& own : results) y.insert(y.end(), own.begin(), own.end());
    return y;
  }
};

TEST_P(CachedAttention, GivesWhatAttentionOfTheWholeSequenceDoes) {
  const std::vector<float> qkv = Rounded(shape().Qkv());
  const AttentionShape whole = shape().whole();
  const auto exact = reference::AttentionForward(whole, ToDouble(qkv));
  Vector y = OneAfterTheOther(qkv);
  for (size_t i = exact.y.size(); i < y.size(); ++i) EXPECT_EQ(y[i], 0.0) << "padding";
  y.resize(exact.y.size());
  EXPECT_THAT(y, Near(exact.y, BoundsOfAttention(whole, ToDouble(qkv), exact, type()).y));
}

constexpr CachedAttentionShape With(CachedAttentionShape shape, int64_t window, float scale = 0.0F,
                                    float score_cap = 0.0F) {
  shape.window = window;
  shape.scale = scale;
  shape.score_cap = score_cap;
  return shape;
}

INSTANTIATE_OP_TEST(
    CachedAttention, NameOf, SequenceCase{{1, 1, 1, 1, 1}}, SequenceCase{{1, 5, 4, 2, 6, 10000.0F}},
    SequenceCase{{3, 17, 2, 2, 3}}, SequenceCase{{1, 70, 6, 2, 64, 10000.0F}},
    SequenceCase{{4, 33, 3, 1, 10, 100.0F}}, SequenceCase{{8, 6, 2, 1, 40}},
    // Rows that begin and end within a warp's share; several warps, and rounds of
    // them; queries of a kv head in more than one block.
    SequenceCase{{8, 77, 2, 2, 64}}, SequenceCase{{7, 70, 6, 1, 80, 10000.0F}},
    SequenceCase{{8, 270, 1, 1, 128, 10000.0F}}, SequenceCase{{8, 45, 4, 1, 96}},
    SequenceCase{{8, 530, 1, 1, 8}}, SequenceCase{{5, 9, 1, 1, 256, 10.0F}},
    SequenceCase{{3, 25, 2, 1, 16, 100.0F, reference::ScaledRotation(8, 0.75)}},
    SequenceCase{{3, 25, 2, 2, 16, 100.0F, {}, 1, false, 4}},
    SequenceCase{{7, 70, 3, 3, 64, 100.0F, {}, 1, false, 16}},
    // Tiles of queries that begin anywhere among those of keys.
    SequenceCase{{100, 230, 2, 1, 8, 100.0F}},
    // Enough work for several tiles of positions in a part.
    SequenceCase{{520, 518, 1, 1, 2}},
    // Scores of several hundred, whose exponentials exceed the range of a float.
    SequenceCase{{1, 40, 2, 1, 16}, 16.0F},
    // A window of one position; of fewer than the rows of a call, a tile and a
    // part; of more than one of them, and of more than there are.
    SequenceCase{With({1, 9, 2, 1, 8}, 1)}, SequenceCase{With({4, 9, 2, 2, 8}, 1)},
    SequenceCase{With({8, 77, 2, 2, 64}, 5)}, SequenceCase{With({1, 70, 6, 2, 64, 10000.0F}, 20)},
    SequenceCase{With({7, 70, 6, 1, 80, 10000.0F}, 64)},
    SequenceCase{With({8, 270, 1, 1, 128, 10000.0F}, 100)},
    SequenceCase{With({8, 530, 1, 1, 8}, 16)}, SequenceCase{With({8, 530, 1, 1, 8}, 257)},
    SequenceCase{With({100, 230, 2, 1, 8, 100.0F}, 30)},
    SequenceCase{With({100, 230, 2, 1, 8, 100.0F}, 130)}, SequenceCase{With({3, 17, 2, 2, 3}, 18)},
    SequenceCase{With({3, 17, 2, 2, 3}, std::numeric_limits<int64_t>::max())},
    // Rotations that are scaled, of whole heads and of a part.
    SequenceCase{{4, 33, 3, 1, 10, 100.0F, reference::ScaledRotation(5, 0.75)}},
    SequenceCase{{7, 70, 3, 3, 64, 100.0F, reference::ScaledRotation(32, 1.25)}},
    // Another scale; a cap that many scores exceed; all of them.
    SequenceCase{With({4, 33, 3, 1, 10, 100.0F}, 0, 0.5F)},
    SequenceCase{With({1, 40, 2, 1, 16}, 0, 0.0F, 2.0F)},
    SequenceCase{With({5, 40, 2, 1, 64}, 0, 0.0F, 30.0F), 16.0F},
    SequenceCase{With({100, 230, 2, 1, 8, 100.0F}, 70, 0.25F, 5.0F)},
    SequenceCase{With({7, 70, 3, 3, 64, 100.0F}, 33, 0.25F, 5.0F)});

TEST(CachedAttentionRefusal, IsAttentions) {
  ExpectInvalid<CachedAttentionShape>({{.rows = 0},
                                       {.positions = 0},
                                       {.heads = 3, .kv_heads = 2, .head_size = 2},
                                       {.head_size = 3, .rotary_base = 10.0F},
                                       {.head_size = 2, .rotary_base = -1.0F},
                                       {.rotary_scaling = {.scale = 0.0}},
                                       {.window = -1},
                                       {.scale = -1.0F},
                                       {.score_cap = -1.0F}});
}

}  // namespace
}  // namespace stagecoach::kernels::cached_attention_test
