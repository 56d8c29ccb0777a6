#include "kernels/ops/elementwise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/tree_sum.h"

namespace stagecoach::kernels::elementwise_test {
namespace {

using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::OpValues;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;
using ::stagecoach::testing::TreeSum;

class Elementwise : public OpTest<int64_t> {
 protected:
  Shape vector() const { return {shape()}; }
};

// A sum is exact except for one rounding, so there is no bound.
TEST_P(Elementwise, AddIsTheSumRoundedOnceAlsoInTheMemoryOfAnOperand) {
  const std::vector<float> a = Rounded(RandomNormal(shape(), 1));
  const std::vector<float> b = Rounded(RandomNormal(shape(), 2));
  std::vector<float> sums;
  for (size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + b[i]);
  const OpValues expected = ToDouble(Rounded(sums));
  const auto [y, in_a, in_b] = ResultsAtAnyAddress([&](OpBench& bench) {
    const Tensor first = bench.Operand(vector(), a), second = bench.Operand(vector(), b);
    const Tensor over_first = bench.Operand(vector(), a), over_second = bench.Operand(vector(), b);
    const Tensor sum = bench.Result(vector());
    bench.Run([&](Stream& stream) -> absl::Status {
      ElementwiseOps& ops = bench.ops().elementwise();
      RETURN_IF_ERROR(ops.Add(stream, first, second, sum));
      RETURN_IF_ERROR(ops.Add(stream, over_first, second, over_first));
      return ops.Add(stream, first, over_second, over_second);
    });
    return std::array{sum, over_first, over_second};
  });
  EXPECT_TRUE(y == expected);
  EXPECT_THAT(in_a, HasTheBitsOf(y));
  EXPECT_THAT(in_b, HasTheBitsOf(y));
}

TEST_P(Elementwise, CopyCopies) {
  const std::vector<float> x = Rounded(RandomNormal(shape(), 1));
  EXPECT_TRUE(
      ResultsAtAnyAddress([&](OpBench& bench) {
        const Tensor from = bench.Operand(vector(), x), to = bench.Result(vector());
        bench.Run([&](Stream& stream) { return bench.ops().elementwise().Copy(stream, from, to); });
        return to;
      }) == ToDouble(x));
}

TEST_P(Elementwise, ClearSetsZeros) {
  const Vector cleared = ResultsAtAnyAddress([&](OpBench& bench) {
    const Tensor to = bench.Result(vector());
    bench.Run([&](Stream& stream) { return bench.ops().elementwise().Clear(stream, to); });
    return to;
  });
  EXPECT_EQ(cleared, Vector(static_cast<size_t>(shape())));
}

std::string NameOf(int64_t elements) { return absl::StrCat(elements); }

// No element; sizes around those of vectors, of a block of threads, and of a CPU's tiles.
INSTANTIATE_OP_TEST(Elementwise, NameOf, 0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 1000, 4095, 4096, 4097,
                    8191, 8192, 8193, 32768, 32769, 100003);

// Sums in float32, so that the order matters, into any of the addends. The longest take two
// launches on a GPU.
using SumTree = Elementwise;

TEST_P(SumTree, AddsInATree) {
  for (const size_t count : {1, 2, 3, 4, 5, 7, 8, 12, 128, 131}) {
    if (count > 8 && shape() > 2000) continue;
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < count; ++i) values.push_back(RandomNormal(shape(), 10 + i));
    const OpValues expected = ToDouble(TreeSum(values));
    for (size_t into = 0; into < count; into += (count + 3) / 4) {
      EXPECT_TRUE(Results([&](OpBench& bench) {
                    std::vector<Tensor> addends;
                    for (const auto& own : values) addends.push_back(bench.Floats(vector(), own));
                    bench.Run([&](Stream& stream) {
                      return bench.ops().elementwise().SumTree(stream, addends, addends[into]);
                    });
                    return addends[into];
                  }) == expected)
          << into << " of " << count;
    }
  }
}

TEST_P(SumTree, LeavesOutWhatHasNoMemory) {
  for (const std::vector<size_t>& present :
       {std::vector<size_t>{0, 2, 3, 4}, {1, 2}, {5}, {2, 3, 6}, {70, 200, 201}}) {
    const size_t count = std::max<size_t>(6, present.back() + 1);
    std::vector<std::vector<float>> values(count);
    for (const size_t i : present) values[i] = RandomNormal(shape(), 10 + i);
    EXPECT_TRUE(Results([&](OpBench& bench) {
                  std::vector<Tensor> addends(count);
                  for (const size_t i : present) addends[i] = bench.Floats(vector(), values[i]);
                  const Tensor& y = addends[present.back()];
                  bench.Run([&](Stream& stream) {
                    return bench.ops().elementwise().SumTree(stream, addends, y);
                  });
                  return y;
                }) == ToDouble(TreeSum(values)))
        << present.back();
  }
}

INSTANTIATE_OP_TEST(SumTree, NameOf, 0, 1, 17, 1025, 32769);

}  // namespace
}  // namespace stagecoach::kernels::elementwise_test
