#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cached_row.h"
#include "kernels/ops/embedding.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

// Tables whose ids are in blocks.
namespace stagecoach::kernels::embedding_blocks_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CheckAvailable;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::OpBackends;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::ToDouble;
using ::testing::Each;
using ::testing::IsNan;

// The ids from `first` on.
struct Block {
  int64_t first, ids;
};

// Returns `count` blocks: the first has half of the ids, the next one half of the others.
std::vector<Block> BlocksOf(int64_t ids, int64_t count) {
  std::vector<Block> blocks;
  for (int64_t first = 0; first < ids; first += blocks.back().ids) {
    const int64_t left = ids - first;
    blocks.push_back({first, std::ssize(blocks) + 1 == count ? left : (left + 1) / 2});
  }
  return blocks;
}

class EmbeddingBlocks : public OpTest<EmbeddingShape> {
 protected:
  struct Gradients {
    Vector tokens, positions;  // the latter one block after the other
  };

  // Every fifth number is a negative zero.
  std::vector<float> Numbers(int64_t rows, uint64_t stream) const {
    std::vector<float> numbers = Rounded(RandomNormal(rows * shape().features, stream));
    for (size_t i = 0; i < numbers.size(); i += 5) numbers[i] = -0.0F;
    return numbers;
  }

  int64_t count() const { return shape().rows * shape().positions; }
  // Of a sequence: there are three positions until its end.
  int64_t first_position() const { return shape().sequence - 3; }
  Shape sample() const { return {shape().table_positions(), shape().features}; }
  Shape activations() const { return {shape().rows, shape().positions, shape().features}; }
  Tensor Ids(OpBench& bench) const {
    return bench.Integers({shape().rows, shape().positions}, ids_);
  }
  EmbeddingShape ShapeOf(const Block& block) const {
    EmbeddingShape of_block = shape();
    of_block.vocabulary = block.ids;
    of_block.all_ids = shape().vocabulary;
    of_block.first = block.first;
    return of_block;
  }
  absl::Span<const float> PartOf(const std::vector<float>& table, const EmbeddingShape& s) const {
    return absl::MakeConstSpan(table).subspan(static_cast<size_t>(s.first * s.features),
                                              static_cast<size_t>(s.vocabulary * s.features));
  }

  // Returns y for each table, which may be a block.
  OpResults Forward(const std::vector<EmbeddingShape>& tables) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      std::vector<Tensor> results;
      std::vector<CachedRow> rows;
      for (int64_t r = 0; r < shape().rows; ++r) rows.push_back({first_position() + r});
      for (const EmbeddingShape& table : tables) {
        EmbeddingOp& op = bench.Create(table);
        const Tensor ids = Ids(bench);
        const Tensor tokens =
            bench.Operand({table.vocabulary, table.features}, PartOf(tokens_, table));
        const Tensor positions =
            table.has_positions ? bench.Operand(sample(), positions_) : Tensor{};
        const CachedRow* const of_rows =
            table.sequence > 0 ? bench.PlaceAll<CachedRow>(rows) : nullptr;
        const Tensor& y = results.emplace_back(bench.Result(activations()));
        bench.Run(
            [&](Stream& stream) { return op.Forward(stream, ids, tokens, positions, of_rows, y); });
      }
      return results;
    });
  }
  OpResults ForwardOf(const std::vector<Block>& blocks) const {
    std::vector<EmbeddingShape> tables;
    for (const Block& block : blocks) tables.push_back(ShapeOf(block));
    return Forward(tables);
  }

  Gradients Backward(const std::vector<EmbeddingShape>& tables, bool accumulate) const {
    const OpResults results = ResultsAtAnyAddress([&](OpBench& bench) {
      std::vector<Tensor> sums;
      for (const EmbeddingShape& table : tables) {
        EmbeddingOp& op = bench.Create(table);
        const Tensor ids = Ids(bench);
        const Tensor dy = bench.Operand(activations(), dy_);
        const Tensor dtokens =
            bench.Sums({table.vocabulary, table.features}, PartOf(dtokens_, table), accumulate);
        const Tensor dpositions =
            table.has_positions ? bench.Sums(sample(), dpositions_, accumulate) : Tensor{};
        std::byte* const workspace = bench.Workspace(op.workspace_bytes());
        bench.Run([&](Stream& stream) {
          return op.BackwardWeight(stream, ids, dy, dtokens, dpositions, accumulate, workspace);
        });
        sums.push_back(dtokens);
        if (table.has_positions) sums.push_back(dpositions);
      }
      return sums;
    });
    Gradients gradients;
    for (size_t i = 0; i < results.size(); ++i) {
      Vector& to = shape().has_positions && i % 2 == 1 ? gradients.positions : gradients.tokens;
      to.insert(to.end(), results[i].begin(), results[i].end());
    }
    return gradients;
  }
  Gradients BackwardOf(const std::vector<Block>& blocks, bool accumulate) const {
    std::vector<EmbeddingShape> tables;
    for (const Block& block : blocks) tables.push_back(ShapeOf(block));
    return Backward(tables, accumulate);
  }

  // Makes some ids be of no block.
  void Misplace() {
    const auto last = static_cast<int32_t>(shape().vocabulary);
    ids_.back() = last;
    if (ids_.size() < 8) return;
    ids_[1] = -1;
    ids_[2] = std::numeric_limits<int32_t>::min();
    ids_[5] = std::numeric_limits<int32_t>::max();
  }

  std::vector<int32_t> ids_ = RandomLabels(count(), shape().vocabulary, 1);
  const std::vector<float> tokens_ = Numbers(shape().vocabulary, 2);
  const std::vector<float> positions_ = Numbers(shape().table_positions(), 3);
  const std::vector<float> dy_ = Numbers(count(), 4);
  const std::vector<float> dtokens_ = RandomNormal(shape().vocabulary * shape().features, 5);
  const std::vector<float> dpositions_ = RandomNormal(sample().elements(), 6);
};

TEST_P(EmbeddingBlocks, AddUpToTheBitsOfOneBlockInAnyOrder) {
  for (const bool misplaces : {false, true}) {
    if (misplaces) Misplace();
    const Vector whole = ForwardOf(BlocksOf(shape().vocabulary, 1))[0];
    for (const int64_t blocks : {2, 3}) {
      OpResults parts = ForwardOf(BlocksOf(shape().vocabulary, blocks));
      for (const bool reversed : {false, true}) {
        if (reversed) std::reverse(parts.begin(), parts.end());
        std::vector<float> sum(parts[0].begin(), parts[0].end());
        for (size_t part = 1; part < parts.size(); ++part) {
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(parts[part][i]);
          sum = Rounded(std::move(sum));
        }
        EXPECT_THAT(ToDouble(sum), HasTheBitsOf(whole)) << blocks << " blocks, " << reversed;
      }
    }
  }
}

TEST_P(EmbeddingBlocks, HaveNoNegativeZeros) {
  for (const int64_t blocks : {1, 2, 3}) {
    for (const Vector& y : ForwardOf(BlocksOf(shape().vocabulary, blocks))) {
      EXPECT_EQ(std::count_if(y.begin(), y.end(),
                              [](double value) { return value == 0.0 && std::signbit(value); }),
                0);
    }
  }
}

TEST_P(EmbeddingBlocks, TheFirstAloneIsNoNumberForIdsOfNone) {
  Misplace();
  const OpResults parts = ForwardOf(BlocksOf(shape().vocabulary, 3));
  const auto C = static_cast<size_t>(shape().features);
  for (size_t part = 0; part < parts.size(); ++part) {
    for (size_t n = 0; n < ids_.size(); ++n) {
      if (ids_[n] >= 0 && ids_[n] < shape().vocabulary) continue;
      const auto begin = parts[part].begin() + static_cast<std::ptrdiff_t>(n * C);
      const Vector y(begin, begin + static_cast<std::ptrdiff_t>(C));
      if (part == 0) {
        EXPECT_THAT(y, Each(IsNan()));
      } else {
        EXPECT_THAT(y, Each(0.0));
      }
    }
  }
}

// A table that is no block may add the position to a product that is not rounded.
TEST_P(EmbeddingBlocks, OneHasTheNumbersOfATableUpToTheRoundingOfAProduct) {
  const Vector one = ForwardOf(BlocksOf(shape().vocabulary, 1))[0];
  Vector table = Forward({shape()})[0];
  int exponent;
  if (!shape().has_positions || std::frexp(shape().scale, &exponent) == 0.5F) {
    for (double& value : table) value += 0.0;  // which makes zeros positive
    EXPECT_THAT(one, HasTheBitsOf(table));
    return;
  }
  EmbeddingShape sample_of_rows = shape();
  Vector positions = Magnitudes(ToDouble(positions_));
  if (shape().sequence > 0) {
    std::swap(sample_of_rows.rows, sample_of_rows.positions);
    sample_of_rows.sequence = 0;
    positions.erase(positions.begin(), positions.begin() + first_position() * shape().features);
    positions.resize(static_cast<size_t>(count() * shape().features));  // none for padding
  }
  // Either rounds at most a product and a sum, which are at most the sum of the magnitudes.
  Vector bounds =
      reference::EmbeddingForward(sample_of_rows, ids_, Magnitudes(ToDouble(tokens_)), positions);
  for (double& bound : bounds) bound *= 2.0 * Gamma(2, type());
  EXPECT_THAT(one, CloseTo(table, bounds));
}

TEST_P(EmbeddingBlocks, GradientsAreThoseOfTheirIdsInTheTable) {
  if (shape().sequence > 0) return;
  for (const bool misplaces : {false, true}) {
    if (misplaces) Misplace();
    for (const bool accumulate : {false, true}) {
      const Gradients table = Backward({shape()}, accumulate);
      for (const int64_t blocks : {1, 2, 3}) {
        const Gradients actual = BackwardOf(BlocksOf(shape().vocabulary, blocks), accumulate);
        EXPECT_THAT(actual.tokens, HasTheBitsOf(table.tokens)) << blocks << " blocks";
        Vector positions;
        while (positions.size() < actual.positions.size()) {
          positions.insert(positions.end(), table.positions.begin(), table.positions.end());
        }
        EXPECT_THAT(actual.positions, HasTheBitsOf(positions)) << blocks << " blocks";
      }
    }
  }
}

// Repeated and missing ids; ids of one block, and of several, in groups of 64; vectors and not.
INSTANTIATE_OP_TEST(
    EmbeddingBlocks,
    [](const EmbeddingShape& s) {
      return absl::StrCat(s.rows, "x", s.positions, "_", s.vocabulary, "x", s.features,
                          s.has_positions ? "_positions" : "", s.scale != 1.0F ? "_scaled" : "",
                          s.sequence > 0 ? "_sequence" : "");
    },
    EmbeddingShape{1, 1, 1, 1, true}, EmbeddingShape{3, 5, 4, 7, true},
    EmbeddingShape{4, 25, 9, 64, true, 0, 25.298F}, EmbeddingShape{1, 70, 200, 8},
    EmbeddingShape{2, 33, 40, 129, false, 0, 25.298F}, EmbeddingShape{3, 700, 300, 4},
    EmbeddingShape{2, 100, 3, 16, true, 0, 0.5F}, EmbeddingShape{1, 70, 70000, 4},
    EmbeddingShape{5, 1, 6, 24, true, 8, 25.298F}, EmbeddingShape{6, 1, 5, 3, true, 8});

TEST(EmbeddingBlocksRefusal, NamesIdsThatAreNotAmongAll) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const auto& backend : OpBackends()) {
    if (!CheckAvailable(backend).ok()) continue;
    SCOPED_TRACE(backend.name);
    OpBench bench(backend.variants.front());
    const auto create = [&](int64_t all_ids, int64_t first) {
      return bench.ops().Create(
          EmbeddingShape{.vocabulary = 3, .all_ids = all_ids, .first = first});
    };
    EXPECT_THAT(create(4, 2), IsRefused("embedding: a block of 3 ids from 2 on must be among all "
                                        "4 ids, which are at most "));
    for (const auto& [all_ids, first] :
         {std::pair<int64_t, int64_t>{4, -1}, {2, 0}, {0, 1}, {-4, 0}, {4, kHuge}, {kHuge, 0}}) {
      EXPECT_THAT(create(all_ids, first), IsRefused("must be among all"));
    }
    EXPECT_TRUE(create(4, 1).ok());
  }
}

}  // namespace
}  // namespace stagecoach::kernels::embedding_blocks_test
