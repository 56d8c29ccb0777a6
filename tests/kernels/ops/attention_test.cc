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
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/attention_bounds.h"
#include "tests/kernels/ops/op_harness.h"
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

// A shape, with the lengths of documents, which are repeated from one sample to the next; none: it
// has none.
struct AttentionCase {
  AttentionCase(const AttentionShape& shape_in, std::vector<int64_t> lengths_in = {})
      : shape(shape_in), lengths(std::move(lengths_in)) {
    shape.has_documents = !lengths.empty();
    size_t next = 0;
    for (int64_t b = 0; shape.has_documents && b < shape.samples; ++b) {
      for (int64_t first = 0; first < shape.positions;) {
        const int64_t length = lengths[next++ % lengths.size()];
        const int64_t end = std::min(first + length, shape.positions);
        for (int64_t t = first; t < end; ++t) documents.push_back(static_cast<int32_t>(first));
        first = end;
      }
    }
  }

  AttentionShape shape;
  std::vector<int64_t> lengths;
  std::vector<int32_t> documents;  // (B, T), or empty
};

// Operands, rounded to the activation type. y and the statistics are the exact ones, rounded:
// backward is tested on its own operands.
struct Problem {
  // qkv is normal with the given deviation.
  Problem(const AttentionCase& of, DType type, float deviation = 1.0F) {
    const AttentionShape& shape = of.shape;
    const int64_t rows = shape.samples * shape.positions;
    qkv = RandomNormal(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_size, 1);
    for (float& value : qkv) value *= deviation;
    qkv = RoundedTo(type, std::move(qkv));
    dy = RoundedTo(type, RandomNormal(rows * shape.heads * shape.head_size, 2));
    Compute(of);
  }
  // Computes what follows from qkv.
  void Compute(const AttentionCase& of) {
    exact = reference::AttentionForward(of.shape, ToDouble(qkv), of.documents);
    y.assign(exact.y.begin(), exact.y.end());
    statistics.assign(exact.statistics.begin(), exact.statistics.end());
  }

  std::vector<float> qkv, dy, y, statistics;
  reference::AttentionOutput exact;
};

class Attention : public OpTest<AttentionCase> {
 protected:
  struct Output {
    Vector statistics, y;
  };
  const AttentionShape& extents() const { return shape().shape; }
  Output Forward(const std::vector<float>& qkv) const {
    OpResults results = Results([&](OpBench& bench) {
      AttentionOp& op = bench.Create(extents());
      const Tensor operand = bench.Operand(packed(), qkv);
      const Tensor documents = Documents(bench);
      const Tensor statistics = bench.ResultOf(DType::kFloat32, heads());
      const Tensor y = bench.Result(outputs());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.Forward(stream, operand, documents, statistics, y, workspace);
      });
      return std::vector<Tensor>{statistics, y};
    });
    return {std::move(results[0]), std::move(results[1])};
  }
  Vector BackwardInput(const Problem& problem) const {
    return Results([&](OpBench& bench) {
      AttentionOp& op = bench.Create(extents());
      const Tensor dy = bench.Operand(outputs(), problem.dy);
      const Tensor qkv = bench.Operand(packed(), problem.qkv);
      const Tensor documents = Documents(bench);
      const Tensor y = bench.Operand(outputs(), problem.y);
      const Tensor statistics = bench.Floats(heads(), problem.statistics);
      const Tensor dqkv = bench.Result(packed());
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.BackwardInput(stream, dy, qkv, documents, y, statistics, dqkv, workspace);
      });
      return std::vector<Tensor>{dqkv};
    })[0];
  }
  void ExpectMatchesReference(const Problem& problem) const {
    const Vector dy = ToDouble(problem.dy), qkv = ToDouble(problem.qkv);
    const Output output = Forward(problem.qkv);
    const auto bounds = BoundsOfAttention(extents(), qkv, problem.exact, type());
    EXPECT_THAT(output.statistics, CloseTo(problem.exact.statistics, bounds.statistics));
    EXPECT_THAT(output.y, Near(problem.exact.y, bounds.y));
    EXPECT_THAT(BackwardInput(problem),
                Near(reference::AttentionBackwardInput(extents(), dy, qkv, shape().documents),
                     BoundsOfAttentionGradient(extents(), dy, qkv, problem.exact, type())));
  }

 private:
  Shape packed() const {
    return {extents().samples, extents().positions,
            (extents().heads + 2 * extents().kv_heads) * extents().head_size};
  }
  Shape outputs() const {
    return {extents().samples, extents().positions, extents().heads * extents().head_size};
  }
  Shape heads() const { return {extents().samples, extents().heads, extents().positions}; }
  Tensor Documents(OpBench& bench) const {
    if (!extents().has_documents) return {};
    return bench.Integers({extents().samples, extents().positions}, shape().documents);
  }
};

TEST_P(Attention, MatchesReference) { ExpectMatchesReference(Problem(shape(), type())); }

std::string NameOf(const AttentionCase& of) {
  const AttentionShape& shape = of.shape;
  std::string name = absl::StrCat(
      shape.samples, "x", shape.positions, "_", shape.heads, "of", shape.kv_heads, "x",
      shape.head_size, shape.rotary_base > 0.0F ? "_rotary" : "",
      shape.rotary_scaling.pairs != 0 ? "_scaled" : "", shape.rotary_size != 0 ? "_partial" : "",
      shape.scale != 0.0F ? "_scale" : "", shape.score_cap != 0.0F ? "_capped" : "");
  if (shape.window != 0) absl::StrAppend(&name, "_window", shape.window);
  if (shape.has_documents) absl::StrAppend(&name, "_documents", absl::StrJoin(of.lengths, "_"));
  return name;
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
                    // Frequencies divided, and what is rotated scaled.
                    AttentionShape{1, 20, 2, 2, 6, 100.0F, reference::ScaledRotation(3, 1.0)},
                    AttentionShape{2, 40, 2, 1, 16, 100.0F, reference::ScaledRotation(8, 0.75)},
                    // A part of each head rotated.
                    AttentionShape{2, 5, 3, 3, 8, 100.0F, {}, 4},
                    AttentionShape{1, 129, 2, 2, 64, 10000.0F, {}, 16},
                    AttentionShape{1, 70, 2, 1, 80, 10000.0F, reference::ScaledRotation(10, 0.75),
                                   20},
                    AttentionShape{1, 20, 1, 1, 6, 100.0F, {}, 2});

AttentionShape With(AttentionShape shape, int64_t window, float scale = 0.0F,
                    float score_cap = 0.0F) {
  shape.window = window;
  shape.scale = scale;
  shape.score_cap = score_cap;
  return shape;
}

using AttentionToSomePositions = Attention;

TEST_P(AttentionToSomePositions, MatchesReference) {
  ExpectMatchesReference(Problem(shape(), type()));
}

// Windows of one position; of fewer than a tile has, of as many and of more; of more than there
// are. Documents of one position; of parts of tiles, whole ones, and several; one for all.
INSTANTIATE_OP_TEST(
    AttentionToSomePositions, NameOf,  //
    AttentionCase(With({1, 5, 2, 1, 4}, 1)), AttentionCase(With({2, 130, 2, 1, 64}, 1)),
    AttentionCase(With({1, 150, 2, 2, 64, 10000.0F}, 20)),
    AttentionCase(With({1, 200, 2, 1, 80}, 64)),
    AttentionCase(With({1, 200, 1, 1, 128, 10000.0F}, 100)),
    AttentionCase(With({2, 66, 3, 1, 10, 100.0F}, 67)),
    AttentionCase(With({1, 70, 1, 1, 33}, std::numeric_limits<int64_t>::max())),
    AttentionCase(With({1, 300, 1, 1, 8}, 17)), AttentionCase(With({1, 300, 1, 1, 8}, 63)),
    AttentionCase(With({1, 300, 1, 1, 8}, 65)), AttentionCase(With({1, 300, 1, 1, 8}, 130)),
    AttentionCase(With({1, 150, 1, 1, 272}, 40)), AttentionCase({1, 5, 2, 1, 4}, {1}),
    AttentionCase({2, 70, 2, 2, 64}, {1}),
    AttentionCase({2, 130, 2, 1, 64, 10000.0F}, {3, 70, 1, 20}),
    AttentionCase({3, 65, 3, 1, 10, 100.0F}, {65}),
    AttentionCase({1, 300, 1, 1, 8}, {64, 128, 1, 1, 40}),
    AttentionCase({2, 150, 2, 2, 128}, {100, 33}),
    AttentionCase({1, 200, 2, 1, 80, 10000.0F}, {17}), AttentionCase({1, 150, 1, 1, 272}, {80, 30}),
    AttentionCase(With({2, 200, 2, 1, 64, 10000.0F}, 50), {120, 3, 40}),
    AttentionCase(With({1, 300, 1, 1, 8}, 90), {150, 90, 7}));

using AttentionOfOtherScores = Attention;

TEST_P(AttentionOfOtherScores, MatchesReference) {
  ExpectMatchesReference(Problem(shape(), type()));
}

// Another scale; caps that no score comes near, that some do, and that most exceed.
INSTANTIATE_OP_TEST(AttentionOfOtherScores, NameOf,  //
                    AttentionCase(With({1, 40, 2, 1, 16}, 0, 0.5F)),
                    AttentionCase(With({2, 130, 2, 1, 64, 10000.0F}, 0, 0.0625F)),
                    AttentionCase(With({1, 17, 2, 2, 3}, 0, 0.0F, 50.0F)),
                    AttentionCase(With({1, 130, 2, 1, 64}, 0, 0.0F, 2.0F)),
                    AttentionCase(With({1, 70, 1, 1, 80, 100.0F}, 0, 0.0F, 3.0F)),
                    AttentionCase(With({1, 150, 2, 2, 16}, 0, 4.0F, 5.0F)),
                    AttentionCase(With({1, 100, 1, 1, 272}, 0, 0.0F, 1.0F)),
                    AttentionCase(With({2, 150, 4, 2, 64, 10000.0F}, 70, 0.125F, 4.0F)),
                    AttentionCase(With({2, 150, 2, 1, 128}, 40, 0.0625F, 4.0F), {90, 3, 20}),
                    AttentionCase(With({2, 150, 3, 1, 10}, 0, 0.25F, 2.0F), {33, 1}));

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
    for (int64_t i = changed * kRow; i < extents().positions * kRow; ++i) {
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

using AttentionOfAWindow = Attention;

TEST_P(AttentionOfAWindow, APositionSeesNoneBeforeIt) {
  const Problem problem(shape(), type());
  constexpr int64_t kRow = 24, kOutput = 8;
  const Vector before = Forward(problem.qkv).y;
  for (const int64_t changed : {1, 15, 16, 40, 63, 64, 70}) {
    std::vector<float> qkv = problem.qkv;
    std::fill_n(qkv.begin(), changed * kRow, 100.0F);
    const Vector after = Forward(qkv).y;
    const auto last = static_cast<size_t>((changed + extents().window - 2) * kOutput);
    EXPECT_EQ(absl::MakeConstSpan(after).subspan(last + kOutput),
              absl::MakeConstSpan(before).subspan(last + kOutput));
    EXPECT_NE(after[last], before[last]) << changed;
  }
}

INSTANTIATE_OP_TEST(AttentionOfAWindow, NameOf, AttentionCase(With({1, 90, 2, 2, 4}, 5)),
                    AttentionCase(With({1, 90, 2, 2, 4}, 20)));

class AttentionOfDocuments : public Attention {
 protected:
  // Calls body(first, end) for the positions of each document.
  template <typename Body>
  void ForEachDocument(Body body) const {
    const std::vector<int32_t>& documents = shape().documents;
    for (int64_t first = 0, end = 0; first < extents().positions; first = end) {
      while (end < extents().positions && documents[static_cast<size_t>(end)] == first) ++end;
      body(first, end);
    }
  }
  // Returns the part of values that belongs to positions.
  template <typename Values>
  Values PartOf(const Values& values, int64_t first, int64_t end) const {
    const int64_t row = std::ssize(values) / extents().positions;
    return Values(values.begin() + first * row, values.begin() + end * row);
  }
};

TEST_P(AttentionOfDocuments, IsThatOfEachAlone) {
  const Problem problem(shape(), type());
  Vector y, dqkv;
  ForEachDocument([&](int64_t first, int64_t end) {
    AttentionShape alone = extents();
    alone.positions = end - first;
    alone.has_documents = false;
    const Vector qkv = ToDouble(PartOf(problem.qkv, first, end));
    const Vector dy = ToDouble(PartOf(problem.dy, first, end));
    const Vector own = reference::AttentionForward(alone, qkv).y;
    const Vector gradient = reference::AttentionBackwardInput(alone, dy, qkv);
    y.insert(y.end(), own.begin(), own.end());
    dqkv.insert(dqkv.end(), gradient.begin(), gradient.end());
  });
  const Vector qkv = ToDouble(problem.qkv);
  EXPECT_THAT(Forward(problem.qkv).y,
              Near(y, BoundsOfAttention(extents(), qkv, problem.exact, type()).y));
  EXPECT_THAT(BackwardInput(problem),
              Near(dqkv, BoundsOfAttentionGradient(extents(), ToDouble(problem.dy), qkv,
                                                   problem.exact, type())));
}

TEST_P(AttentionOfDocuments, HasTheSameBitsWhateverTheOthersHold) {
  const Problem problem(shape(), type());
  const Vector y = Forward(problem.qkv).y, dqkv = BackwardInput(problem);
  ForEachDocument([&](int64_t first, int64_t end) {
    Problem changed = problem;
    const auto change = [&](std::vector<float>& values) {
      const int64_t row = std::ssize(values) / extents().positions;
      std::fill(values.begin(), values.begin() + first * row, 100.0F);
      std::fill(values.begin() + end * row, values.end(), 100.0F);
    };
    change(changed.qkv);
    change(changed.dy);
    changed.Compute(shape());
    EXPECT_EQ(PartOf(Forward(changed.qkv).y, first, end), PartOf(y, first, end)) << first;
    EXPECT_EQ(PartOf(BackwardInput(changed), first, end), PartOf(dqkv, first, end)) << first;
  });
}

INSTANTIATE_OP_TEST(AttentionOfDocuments, NameOf,
                    AttentionCase({1, 150, 2, 1, 64, 10000.0F}, {70, 1, 30, 64}),
                    AttentionCase(With({1, 100, 2, 2, 10}, 20, 0.25F, 3.0F), {5, 43, 16}));

using AttentionWorkspace = Attention;

TEST_P(AttentionWorkspace, DoesNotGrowWithTheSquareOfThePositions) {
  OpBench bench(backend().variants.front());
  const auto bytes = [&](int64_t positions) {
    AttentionShape longer = extents();
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
      {{.rotary_scaling = {.scale = 0.0}}, "rotations by 0"},
      {{.rotary_scaling = {.scale = kNan}}, "rotations by nan"},
      {{.rotary_scaling = {.scale = kInfinity}}, "rotations by inf"},
      {{.head_size = 4, .rotary_scaling = {.pairs = 1, .divisors = {1.0}}},
       "scaled by 1 divisors and rotations by 1, expected positive numbers, and a divisor for each "
       "of the 2 pairs"},
      {{.head_size = 4, .rotary_scaling = {.pairs = 2, .divisors = {1.0, 0.0}}}, "2 divisors"},
      {{.head_size = 4, .rotary_scaling = {.pairs = 2, .divisors = {kNan, 1.0}}}, "2 divisors"},
      {{.head_size = 512, .rotary_scaling = {.pairs = 256}}, "at most 128"},
      {{.head_size = 4, .rotary_scaling = {.pairs = -1}}, "-1 divisors"},
      {{.window = -1}, "window must be positive, or 0 for none, not -1"},
      {{.scale = -1.0F},
       "scale of scores must be positive, or 0 for that of the head size, not -1"},
      {{.scale = kInfinity}, "not inf"},
      {{.scale = kNan}, "not nan"},
      {{.score_cap = -1.0F}, "cap of scores must be positive, or 0 for none, not -1"},
      {{.score_cap = kInfinity}, "not inf"},
      {{.score_cap = kNan}, "not nan"},
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
