#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/linear/column_sums_kernels.h"
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
using ::stagecoach::testing::HaveTheSameBits;
using ::stagecoach::testing::InEveryOrder;
using ::stagecoach::testing::kActivationTypes;
using ::stagecoach::testing::NameOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;

// Checks in every order of threads; `offset` elements off from where vectors begin.
void ExpectSums(std::pair<int64_t, int64_t> shape, DType type, int64_t offset, bool accumulate) {
  const auto [rows, columns] = shape;
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

// One row and one column; columns that fill vectors and tiles and that do not; several blocks of
// rows, of which the last is shorter.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {1, 40},  {63, 3},   {129, 64},
                                                   {700, 5}, {515, 8}, {1000, 72}};

class ColumnSums : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(ColumnSums, AreWrittenOverWhatWasThere) {
  for (const DType type : kActivationTypes)
    ExpectSums(GetParam(), type, /*offset=*/0, /*accumulate=*/false);
}

TEST_P(ColumnSums, AreAddedToWhatWasThere) {
  for (const DType type : kActivationTypes)
    ExpectSums(GetParam(), type, /*offset=*/0, /*accumulate=*/true);
}

TEST_P(ColumnSums, AreOfMatricesAtAnyAddress) {
  for (const DType type : kActivationTypes)
    ExpectSums(GetParam(), type, /*offset=*/1, /*accumulate=*/false);
}

// The result does not depend on which thread takes the first step. The activation's gradient
// overwrites its operand.
TEST_P(ColumnSums, AreOfAnActivationsGradientAsItIsWritten) {
  const auto [rows, columns] = GetParam();
  for (const DType type : kActivationTypes) {
    const auto run = [&, rows = rows, columns = columns](bool at_once) {
      EmulatedGpu gpu;
      const Tensor dy = gpu.Operand(type, RoundedTo(type, RandomNormal(rows * columns, 1)));
      const Tensor dz = gpu.Operand(type, RoundedTo(type, RandomNormal(rows * columns, 2)));
      const Tensor sums = gpu.Operand(DType::kFloat32, RandomNormal(columns, 3));
      const Tensor partial =
          gpu.Result(DType::kFloat32, PartialSumsBytes(rows, columns) / SizeOf(DType::kFloat32));
      EXPECT_EQ(LaunchActivationBackward(gpu.stream(), ElementTypeOf(type), Activation::kGelu,
                                         {.rows = rows,
                                          .columns = columns,
                                          .dy = dy.data,
                                          .known = dz.data,
                                          .dz = dz.data,
                                          .partial_sums = at_once ? partial.f32() : nullptr}),
                cudaSuccess);
      const cudaError_t error = at_once
                                    ? LaunchTotalSums(gpu.stream(), {.rows = rows,
                                                                     .columns = columns,
                                                                     .partial_sums = partial.f32(),
                                                                     .sums = sums.f32(),
                                                                     .accumulate = true})
                                    : LaunchColumnSums(gpu.stream(), ElementTypeOf(type),
                                                       {.rows = rows,
                                                        .columns = columns,
                                                        .matrix = dz.data,
                                                        .sums = sums.f32(),
                                                        .accumulate = true,
                                                        .workspace = partial.f32()});
      EXPECT_EQ(error, cudaSuccess);
      return std::vector<std::vector<double>>{gpu.Values(dz), gpu.Values(sums)};
    };
    EXPECT_TRUE(HaveTheSameBits(run(true), run(false))) << NameOf(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ColumnSums, ::testing::ValuesIn(kShapes), [](const auto& test) {
  return absl::StrCat(test.param.first, "x", test.param.second);
});

// Enough rows that blocks have more of them, and threads more than are in flight at once.
TEST(ColumnSumsOfManyRows, AreOfLongerBlocks) {
  constexpr std::pair<int64_t, int64_t> kManyRows = {73900, 8};
  ExpectSums(kManyRows, DType::kBfloat16, /*offset=*/0, /*accumulate=*/false);
}

TEST(ColumnSumsOfManyRows, AreFewBesideTheMatrix) {
  constexpr int64_t kRowBytes = 2304 * 4;
  EXPECT_EQ(PartialSumsBytes(64, 2304), kRowBytes);
  EXPECT_EQ(PartialSumsBytes(512, 2304), 8 * kRowBytes);
  EXPECT_EQ(PartialSumsBytes(4096, 2304), 32 * kRowBytes);
  EXPECT_EQ(PartialSumsBytes(8192, 2304), 32 * kRowBytes);
  EXPECT_EQ(PartialSumsBytes(32768, 2304), 128 * kRowBytes);
  EXPECT_EQ(PartialSumsBytes(1 << 20, 2304), 128 * kRowBytes);
}

}  // namespace
}  // namespace stagecoach::kernels::column_sums_test
