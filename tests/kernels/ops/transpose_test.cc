#include "kernels/ops/transpose.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::transpose_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::testing::Eq;
using ::testing::Pointwise;

using Transposition = OpTest<TransposeShape>;

TEST_P(Transposition, MovesEveryElement) {
  const auto [matrices, rows, columns] = shape();
  const std::vector<float> x = Rounded(RandomNormal(matrices * rows * columns, 1));
  const auto y = ResultsAtAnyAddress([&](OpBench& bench) {
    TransposeOp& op = bench.Create(shape());
    const Tensor from = bench.Operand({shape().matrices, shape().rows, shape().columns}, x);
    const Tensor to = bench.Result({shape().matrices, shape().columns, shape().rows});
    bench.Run([&](Stream& stream) { return op.Apply(stream, from, to); });
    return to;
  });
  std::vector<float> expected(x.size());
  for (int64_t i = 0; i < matrices * rows * columns; ++i) {
    const int64_t n = i / (rows * columns), r = i / columns % rows, c = i % columns;
    expected[static_cast<size_t>((n * columns + c) * rows + r)] = x[static_cast<size_t>(i)];
  }
  EXPECT_THAT(y, Pointwise(Eq(), expected));
}

std::string NameOf(const TransposeShape& s) {
  return absl::StrCat(s.matrices, "x", s.rows, "x", s.columns);
}

// Few rows and few columns, in vectors too; whole tiles and partial ones.
INSTANTIATE_OP_TEST(Transposition, NameOf, TransposeShape{}, TransposeShape{3, 3, 70},
                    TransposeShape{2, 70, 5}, TransposeShape{3, 3, 1030},
                    TransposeShape{2, 1025, 15}, TransposeShape{2, 3, 1048},
                    TransposeShape{2, 536, 4}, TransposeShape{2, 32, 64},
                    TransposeShape{3, 33, 17});

TEST(TransposeRefusal, IsAnInvalidArgument) {
  ExpectInvalid<TransposeShape>(
      {{.matrices = 0}, {.rows = -1}, {.columns = std::numeric_limits<int64_t>::max()}});
}

}  // namespace
}  // namespace stagecoach::kernels::transpose_test
