#include "kernels/ops/concat.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::concat_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::testing::Eq;
using ::testing::Pointwise;

using Concat = OpTest<ConcatShape>;

TEST_P(Concat, JoinsAndSplitsRows) {
  const auto [rows, first, second] = shape();
  const std::vector<float> a = Rounded(RandomNormal(rows * first, 1));
  const std::vector<float> b = Rounded(RandomNormal(rows * second, 2));
  std::vector<float> both;
  for (int64_t r = 0; r < rows; ++r) {
    both.insert(both.end(), a.begin() + r * first, a.begin() + (r + 1) * first);
    both.insert(both.end(), b.begin() + r * second, b.begin() + (r + 1) * second);
  }
  const auto [whole, first_again, second_again, second_alone] =
      ResultsAtAnyAddress([&](OpBench& bench) {
        ConcatOp& op = bench.Create(shape());
        const Shape of_a{shape().rows, shape().first}, of_b{shape().rows, shape().second};
        const Tensor from_a = bench.Operand(of_a, a), from_b = bench.Operand(of_b, b);
        const Tensor joined = bench.Result({shape().rows, shape().first + shape().second});
        const Tensor to_a = bench.Result(of_a), to_b = bench.Result(of_b);
        const Tensor alone = bench.Result(of_b);
        bench.Run([&](Stream& stream) -> absl::Status {
          RETURN_IF_ERROR(op.Join(stream, from_a, from_b, joined));
          RETURN_IF_ERROR(op.Split(stream, joined, to_a, to_b));
          return op.Split(stream, joined, {}, alone);
        });
        return std::array{joined, to_a, to_b, alone};
      });
  EXPECT_THAT(whole, Pointwise(Eq(), both));
  EXPECT_THAT(first_again, Pointwise(Eq(), a));
  EXPECT_THAT(second_again, Pointwise(Eq(), b));
  EXPECT_THAT(second_alone, Pointwise(Eq(), b));
}

std::string NameOf(const ConcatShape& s) {
  return absl::StrCat(s.rows, "x", s.first, "and", s.second);
}

INSTANTIATE_OP_TEST(Concat, NameOf, ConcatShape{}, ConcatShape{3, 5, 2}, ConcatShape{7, 16, 8},
                    ConcatShape{40, 24, 16}, ConcatShape{2, 8, 12}, ConcatShape{600, 3, 1});

TEST(ConcatRefusal, IsAnInvalidArgument) {
  ExpectInvalid<ConcatShape>(
      {{.rows = 0}, {.first = -1}, {.second = std::numeric_limits<int64_t>::max()}});
}

}  // namespace
}  // namespace stagecoach::kernels::concat_test
