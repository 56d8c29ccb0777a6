#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/column_sums_kernels.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::column_sums_test {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::ElementTypeOf;
using ::stagecoach::testing::EmulatedGpu;
using ::stagecoach::testing::InEveryOrder;
using ::stagecoach::testing::kActivationTypes;
using ::stagecoach::testing::NameOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;

// One row and one column; columns that fill vectors and that do not; several blocks of rows, of
// which the last is shorter.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {1, 40},  {63, 3},   {129, 64},
                                                   {700, 5}, {515, 8}, {1000, 33}};

class ColumnSums : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  // In every order of threads; `offset` elements off from where vectors begin.
  static void ExpectSums(DType type, int64_t offset, bool accumulate) {
    const auto [rows, columns] = GetParam();
    const std::vector<float> matrix = RoundedTo(type, RandomNormal(rows * columns, 1));
    const std::vector<float> before = RandomNormal(columns, 2);
    std::vector<double> expected(static_cast<size_t>(columns)), bounds;
    std::vector<double> sum_abs(static_cast<size_t>(columns));
    for (size_t i = 0; i < matrix.size(); ++i) {
      expected[i % expected.size()] += matrix[i];
      sum_abs[i % expected.size()] += std::fabs(matrix[i]);
    }
    for (size_t c = 0; c < expected.size(); ++c) {
      if (accumulate) {
        expected[c] += before[c];
        sum_abs[c] += std::fabs(before[c]);
      }
      bounds.push_back(DotBound(rows + 1, sum_abs[c]));
    }
    const auto sums = InEveryOrder([&, rows = rows, columns = columns](EmulatedGpu& gpu) {
      const Tensor from = gpu.Operand(type, matrix, offset);
      const Tensor to =
          accumulate ? gpu.Operand(DType::kFloat32, before) : gpu.Result(DType::kFloat32, columns);
      const Tensor workspace = gpu.Result(
          DType::kFloat32, ColumnSumsWorkspaceBytes(rows, columns) / SizeOf(DType::kFloat32));
      EXPECT_EQ(LaunchColumnSums(gpu.stream(), ElementTypeOf(type),
                                 {.rows = rows,
                                  .columns = columns,
                                  .matrix = from.data,
                                  .sums = to.f32(),
                                  .accumulate = accumulate,
                                  .workspace = workspace.f32()}),
                cudaSuccess);
      return std::vector<std::vector<double>>{gpu.Values(to)};
    });
    EXPECT_THAT(sums[0], CloseTo(expected, bounds)) << NameOf(type) << ", offset " << offset;
  }
};

TEST_P(ColumnSums, AreWrittenOverWhatWasThere) {
  for (const DType type : kActivationTypes) ExpectSums(type, /*offset=*/0, /*accumulate=*/false);
}

TEST_P(ColumnSums, AreAddedToWhatWasThere) {
  for (const DType type : kActivationTypes) ExpectSums(type, /*offset=*/0, /*accumulate=*/true);
}

TEST_P(ColumnSums, AreOfMatricesAtAnyAddress) {
  for (const DType type : kActivationTypes) ExpectSums(type, /*offset=*/1, /*accumulate=*/false);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ColumnSums, ::testing::ValuesIn(kShapes), [](const auto& test) {
  return absl::StrCat(test.param.first, "x", test.param.second);
});

}  // namespace
}  // namespace stagecoach::kernels::column_sums_test
