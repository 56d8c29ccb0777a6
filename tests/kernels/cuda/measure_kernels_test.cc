#include "kernels/cuda/tuning/measure_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::measure_kernels_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using ::testing::Ge;
using testing::InEveryOrder;
using testing::kActivationTypes;
using ::testing::Le;
using testing::RandomNormal;
using testing::RoundedTo;

using Values = std::vector<double>;

Values Filled(DType type, int64_t elements, uint32_t seed) {
  return InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor to = gpu.Result(type, elements);
    EXPECT_EQ(LaunchFillUniform(gpu.stream(), ElementTypeOf(type), elements, seed, to.data),
              cudaSuccess);
    return std::vector<Values>{gpu.Values(to)};
  })[0];
}

TEST(CudaFillUniform, FillsWithNumbersFromMinusOneToOne) {
  for (const DType type : kActivationTypes) {
    for (const int64_t elements : {1, 255, 4097, 20000}) {
      EXPECT_THAT(Filled(type, elements, 1), Each(AllOf(Ge(-1.0), Le(1.0)))) << elements;
    }
  }
}

// The chance that one of ten equal parts contains none of the numbers is below 1e-900.
TEST(CudaFillUniform, LeavesNoPartOfTheIntervalOut) {
  for (const DType type : kActivationTypes) {
    std::vector<int> counts(10);
    for (const double value : Filled(type, 20000, 1)) {
      ++counts[static_cast<size_t>(std::min(9.0, (value + 1.0) * 5.0))];
    }
    EXPECT_THAT(counts, Each(Ge(1)));
  }
}

TEST(CudaFillUniform, GivesSeedsNumbersOfTheirOwn) {
  EXPECT_EQ(Filled(DType::kFloat32, 1000, 1), Filled(DType::kFloat32, 1000, 1));
  EXPECT_NE(Filled(DType::kFloat32, 1000, 1), Filled(DType::kFloat32, 1000, 2));
}

// Returns the fingerprint as two 32-bit words.
Values Fingerprint(const std::vector<int32_t>& words) {
  return InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor from = gpu.Integers(words), sum = gpu.Integers({0, 0});
    EXPECT_EQ(LaunchFingerprint(gpu.stream(), static_cast<int64_t>(words.size()),
                                reinterpret_cast<const uint32_t*>(from.i32()),
                                reinterpret_cast<unsigned long long*>(sum.i32())),
              cudaSuccess);
    return std::vector<Values>{gpu.Values(sum)};
  })[0];
}

TEST(CudaFingerprint, DependsOnEveryWordAndEveryBit) {
  for (const size_t count : {1U, 300U, 9000U}) {
    const std::vector<int32_t> words(count, 0x3F800000);
    const Values fingerprint = Fingerprint(words);
    for (const size_t place : {size_t{0}, count / 2, count - 1}) {
      for (const int32_t bit : {0, 7, 31}) {
        std::vector<int32_t> other = words;
        other[place] ^= static_cast<int32_t>(1U << bit);
        EXPECT_NE(Fingerprint(other), fingerprint) << "word " << place << ", bit " << bit;
      }
    }
  }
}

TEST(CudaFingerprint, DependsOnPlaces) {
  EXPECT_NE(Fingerprint({1, 2, 3, 4}), Fingerprint({1, 3, 2, 4}));
}

// Returns the sketch of a matrix whose rows have a gap behind them.
Values Sketch(DType type, int64_t rows, int64_t columns, const std::vector<float>& values) {
  const auto count = static_cast<size_t>(SketchSums(rows * columns));
  return InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor matrix = gpu.Operand(type, values);
    const Tensor sums = gpu.Integers(std::vector<int32_t>(2 * count, -1));
    EXPECT_EQ(LaunchSketch(gpu.stream(), ElementTypeOf(type),
                           {.rows = rows,
                            .columns = columns,
                            .pitch = columns + 2,
                            .matrix = matrix.data,
                            .sums = reinterpret_cast<double*>(sums.i32())}),
              cudaSuccess);
    const Values words = gpu.Values(sums);
    Values found;
    for (size_t i = 0; i < count; ++i) {
      const auto word = [&](size_t k) {
        return uint64_t{static_cast<uint32_t>(static_cast<int32_t>(words[2 * i + k]))};
      };
      found.push_back(std::bit_cast<double>(word(0) | word(1) << 32));
    }
    return std::vector<Values>{found};
  })[0];
}

double SquaresOf(const Values& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

TEST(CudaSketch, HasAboutTheNormOfAMatrixAndLeavesGapsOut) {
  for (const DType type : kActivationTypes) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {30, 998}}) {
      std::vector<float> values =
          RoundedTo(type, RandomNormal(rows * (columns + 2), static_cast<uint64_t>(rows)));
      double expected = 0.0;
      for (int64_t i = 0; i < rows * columns; ++i) {
        const double value = values[static_cast<size_t>(i / columns * (columns + 2) + i % columns)];
        expected += value * value;
      }
      const Values sketch = Sketch(type, rows, columns, values);
      EXPECT_NEAR(SquaresOf(sketch) / expected, 1.0, rows == 1 ? 1e-6 : 0.5);
      // The same numbers elsewhere have another sketch.
      if (rows > 1) {
        std::swap(values[0], values[1]);
        EXPECT_NE(Sketch(type, rows, columns, values), sketch);
      }
      values.back() = values[values.size() - 2] = 1e30F;
      std::swap(values[0], values[rows > 1 ? 1 : 0]);
      EXPECT_EQ(Sketch(type, rows, columns, values), sketch);
    }
  }
}

}  // namespace
}  // namespace stagecoach::kernels::measure_kernels_test
