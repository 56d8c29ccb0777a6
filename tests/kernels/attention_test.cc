#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention_bounds.h"
#include "tests/kernels/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/refusals.h"

namespace stagecoach::kernels::attention_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CheckAvailable;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::OpBackend;
using ::stagecoach::testing::OpBackends;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::ToDouble;

// Operands, rounded to the activation type. y and the statistics are the exact ones, rounded:
// backward is tested on its own operands.
struct Problem {
  // qkv is normal with the given deviation.
  Problem(const AttentionShape& shape, DType type, float deviation = 1.0F) {
    const int64_t rows = shape.samples * shape.positions;
    qkv = RandomNormal(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_size, 1);
    for (float& value : qkv) value *= deviation;
    qkv = RoundedTo(type, std::move(qkv));
    dy = RoundedTo(type, RandomNormal(rows * shape.heads * shape.head_size, 2));
    exact = reference::AttentionForward(shape, ToDouble(qkv));
    y.assign(exact.y.begin(), exact.y.end());
    statistics.assign(exact.statistics.begin(), exact.statistics.end());
  }

  std::vector<float> qkv, dy, y, statistics;
  reference::AttentionOutput exact;
};

class Attention : public OpTest<AttentionShape> {
 protected:
  struct Output {
    Vector statistics, y;
  };
  Output Forward(const std::vector<float>& qkv) const {
    OpResults results = Results([&](OpBench& bench) {
      AttentionOp& op = bench.Create(shape());
      const Tensor operand = bench.Operand(packed(), qkv);
      const Tensor statistics = bench.ResultOf(DType::kFloat32, heads());
      const Tensor y = bench.Result(outputs());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run(
          [&](Stream& stream) { return op.Forward(stream, operand, statistics, y, workspace); });
      return std::vector<Tensor>{statistics, y};
    });
    return {std::move(results[0]), std::move(results[1])};
  }
  Vector BackwardInput(const Problem& problem) const {
    return Results([&](OpBench& bench) {
      AttentionOp& op = bench.Create(shape());
      const Tensor dy = bench.Operand(outputs(), problem.dy);
      const Tensor qkv = bench.Operand(packed(), problem.qkv);
      const Tensor y = bench.Operand(outputs(), problem.y);
      const Tensor statistics = bench.Floats(heads(), problem.statistics);
      const Tensor dqkv = bench.Result(packed());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.BackwardInput(stream, dy, qkv, y, statistics, dqkv, workspace);
      });
      return std::vector<Tensor>{dqkv};
    })[0];
  }
  void ExpectMatchesReference(const Problem& problem) const {
    const Vector dy = ToDouble(problem.dy), qkv = ToDouble(problem.qkv);
    const Output output = Forward(problem.qkv);
    const auto bounds = BoundsOfAttention(shape(), qkv, problem.exact, type());
    EXPECT_THAT(output.statistics, CloseTo(problem.exact.statistics, bounds.statistics));
    EXPECT_THAT(output.y, Near(problem.exact.y, bounds.y));
    EXPECT_THAT(BackwardInput(problem),
                Near(reference::AttentionBackwardInput(shape(), dy, qkv),
                     BoundsOfAttentionGradient(shape(), dy, qkv, problem.exact, type())));
  }

 private:
  Shape packed() const {
    return {shape().samples, shape().positions,
            (shape().heads + 2 * shape().kv_heads) * shape().head_size};
  }
  Shape outputs() const {
    return {shape().samples, shape().positions, shape().heads * shape().head_size};
  }
  Shape heads() const { return {shape().samples, shape().heads, shape().positions}; }
};

TEST_P(Attention, MatchesReference) { ExpectMatchesReference(Problem(shape(), type())); }

std::string NameOf(const AttentionShape& shape) {
  return absl::StrCat(shape.samples, "x", shape.positions, "_", shape.heads, "of", shape.kv_heads,
                      "x", shape.head_size, shape.rotary_base > 0.0F ? "_rotary" : "",
                      shape.rotary_scaling.factor != 1.0 ? "_scaled" : "",
                      shape.rotary_size != 0 ? "_partial" : "");
}

// One position, one head, a head of one number; heads with their own keys, in groups, and one group
// of all; positions that fill tiles, and do not; heads of odd sizes, of whole vectors, and larger
// than a tile.
INSTANTIATE_OP_TEST(Attention, NameOf, AttentionShape{1, 1, 1, 1, 1},
                    AttentionShape{2, 1, 3, 3, 4, 10000.0F},
                    AttentionShape{2, 5, 4, 2, 6, 10000.0F}, AttentionShape{3, 17, 2, 2, 3},
                    AttentionShape{1, 64, 2, 1, 64}, AttentionShape{3, 65, 3, 1, 10, 100.0F},
                    AttentionShape{1, 100, 4, 4, 20}, AttentionShape{2, 130, 3, 1, 72, 10000.0F},
                    AttentionShape{1, 127, 2, 2, 80}, AttentionShape{1, 150, 1, 1, 33},
                    AttentionShape{1, 129, 2, 1, 64, 10000.0F},
                    AttentionShape{1, 70, 2, 1, 128, 10000.0F}, AttentionShape{1, 70, 1, 1, 139},
                    AttentionShape{1, 66, 1, 1, 272, 10000.0F}, AttentionShape{1, 300, 1, 1, 8},
                    // Frequencies all divided; some divided, kept, and in between.
                    AttentionShape{1, 20, 2, 2, 6, 100.0F, {.factor = 4.0}},
                    AttentionShape{2, 40, 2, 1, 16, 100.0F, {8.0, 48, 1.0, 4.0}},
                    // A part of each head rotated.
                    AttentionShape{2, 5, 3, 3, 8, 100.0F, {}, 4},
                    AttentionShape{1, 129, 2, 2, 64, 10000.0F, {}, 16},
                    AttentionShape{1, 70, 2, 1, 80, 10000.0F, {.factor = 4.0}, 20},
                    AttentionShape{1, 20, 1, 1, 6, 100.0F, {}, 2});

// Scores of several hundred, whose exponentials exceed the range of a float.
using AttentionOfLargeScores = Attention;

TEST_P(AttentionOfLargeScores, MatchesReference) {
  const Problem problem(shape(), type(), /*deviation=*/16.0F);
  ASSERT_GT(*std::max_element(problem.statistics.begin(), problem.statistics.end()), 500.0F);
  ExpectMatchesReference(problem);
}

INSTANTIATE_OP_TEST(AttentionOfLargeScores, NameOf,
                    AttentionShape{.positions = 150, .heads = 2, .kv_heads = 1, .head_size = 16});

using AttentionOfFourNumbers = Attention;

TEST_P(AttentionOfFourNumbers, APositionSeesNoLaterOne) {
  const Problem problem(shape(), type());
  constexpr int64_t kRow = 24, kOutput = 8;
  const Vector before = Forward(problem.qkv).y;
  for (const int64_t changed : {1, 15, 16, 40, 63, 64, 80, 89}) {
    std::vector<float> qkv = problem.qkv;
    for (int64_t i = changed * kRow; i < shape().positions * kRow; ++i) {
      qkv[static_cast<size_t>(i)] = 100.0F;
    }
    const Vector after = Forward(qkv).y;
    const auto first = static_cast<size_t>(changed * kOutput);
    EXPECT_EQ(absl::MakeConstSpan(after).first(first), absl::MakeConstSpan(before).first(first));
    EXPECT_NE(after[first], before[first]) << changed;
  }
}

TEST_P(AttentionOfFourNumbers, NotANumberStaysOne) {
  std::vector<float> qkv = Problem(shape(), type()).qkv;
  qkv[720] = std::numeric_limits<float>::quiet_NaN();  // head 0 of the query at position 30
  const Vector y = Forward(qkv).y;
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 4 == 60) << i;
}

INSTANTIATE_OP_TEST(AttentionOfFourNumbers, NameOf,
                    AttentionShape{.positions = 90, .heads = 2, .kv_heads = 2, .head_size = 4});

using AttentionWorkspace = Attention;

TEST_P(AttentionWorkspace, DoesNotGrowWithTheSquareOfThePositions) {
  OpBench bench(backend().variants.front());
  const auto bytes = [&](int64_t positions) {
    AttentionShape longer = shape();
    longer.positions = positions;
    return bench.Create(longer).workspace_bytes();
  };
  EXPECT_GT(bytes(1024), 0);
  EXPECT_LE(bytes(65536), 64 * bytes(1024));
}

INSTANTIATE_OP_TEST(AttentionWorkspace, NameOf,
                    AttentionShape{.heads = 2, .kv_heads = 2, .head_size = 64});

TEST(AttentionRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLarge = std::numeric_limits<int32_t>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Refusal<AttentionShape> refusals[] = {
      {{.samples = 0}, "0 samples"},
      {{.positions = 0}, "0 positions"},
      {{.heads = 0}, "0 heads"},
      {{.kv_heads = 0}, "0 kv heads"},
      {{.head_size = 0}, "head size 0"},
      {{.samples = -1}, "-1 samples"},
      {{.positions = kHuge}, "positions"},
      {{.samples = kLarge, .positions = kLarge}, "positions"},
      {{.heads = kLarge, .head_size = kLarge}, "head size"},
      {{.positions = 1 << 29, .head_size = 8}, "head size 8"},
      {{.heads = kHuge}, "heads"},
      {{.heads = 6, .kv_heads = 4}, "4 kv heads do not divide 6 heads"},
      {{.heads = 2, .kv_heads = 4}, "4 kv heads do not divide 2 heads"},
      {{.head_size = 3, .rotary_base = 10.0F}, "even, not 3"},
      {{.head_size = 4, .rotary_base = -1.0F}, "not -1"},
      {{.head_size = 4, .rotary_base = kInfinity}, "not inf"},
      {{.head_size = 4, .rotary_base = kNan}, "not nan"},
      {{.head_size = 4, .rotary_base = 10.0F, .rotary_size = 3}, "even, and at most 4, not 3"},
      {{.head_size = 4, .rotary_base = 10.0F, .rotary_size = 6}, "even, and at most 4, not 6"},
      {{.head_size = 4, .rotary_base = 10.0F, .rotary_size = -2}, "even, and at most 4, not -2"},
      {{.rotary_scaling = {.factor = 0.5}}, "scaled by 0.5"},
      {{.rotary_scaling = {.factor = kNan}}, "scaled by nan"},
      {{.rotary_scaling = {.original_positions = -1}}, "in -1 positions"},
      {{.rotary_scaling = {.low_turns = 0.0}}, "between 0 and 4 turns"},
      {{.rotary_scaling = {.low_turns = 4.0}}, "between 4 and 4 turns"},
      {{.rotary_scaling = {.high_turns = kInfinity}}, "and inf turns"},
  };
  for (const OpBackend& backend : OpBackends()) {
    if (!CheckAvailable(backend).ok()) continue;
    SCOPED_TRACE(backend.name);
    OpBench bench(backend.variants.front());
    ExpectRefusals([&](const AttentionShape& shape) { return bench.ops().Create(shape); },
                   refusals);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::attention_test
