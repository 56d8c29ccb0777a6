#include "kernels/ops/columns.h"

#include <array>
#include <cstddef>
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

namespace stagecoach::kernels::columns_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::testing::Eq;
using ::testing::Pointwise;

constexpr std::array kScales = {1.0F, 0.5F, 2.0F / 3.0F};

// The operation rounds a product, then a sum, to float32. Both are exact in double, or are rounded
// there so finely that float32's rounding is the same: results are expected to the bit.
std::vector<float> Scaled(std::vector<float> values, float scale) {
  for (float& value : values) {
    value = static_cast<float>(static_cast<double>(scale) * static_cast<double>(value));
  }
  return values;
}

float Sum(float a, float b) {
  return static_cast<float>(static_cast<double>(a) + static_cast<double>(b));
}

class Columns : public OpTest<ColumnsShape> {
 protected:
  Shape of_whole() const { return {shape().rows, shape().columns}; }
  Shape of_part() const { return {shape().rows, shape().count}; }
  std::vector<float> Random(const Shape& of, uint64_t stream) const {
    return Rounded(RandomNormal(of.elements(), stream));
  }
  // Calls function(index in the whole, index in the part) for each element of the part.
  template <typename Function>
  void ForEachElement(Function function) const {
    for (int64_t r = 0; r < shape().rows; ++r) {
      for (int64_t n = 0; n < shape().count; ++n) {
        function(static_cast<size_t>(r * shape().columns + shape().first + n),
                 static_cast<size_t>(r * shape().count + n));
      }
    }
  }
};

TEST_P(Columns, AddsToThemAndToNoOthers) {
  const std::vector<float> whole = Random(of_whole(), 1), part = Random(of_part(), 2);
  const auto results = ResultsAtAnyAddress([&](OpBench& bench) {
    ColumnsOp& op = bench.Create(shape());
    const Tensor addend = bench.Operand(of_part(), part);
    std::array<Tensor, kScales.size()> sums;
    for (Tensor& sum : sums) sum = bench.Operand(of_whole(), whole);
    bench.Run([&](Stream& stream) -> absl::Status {
      for (size_t i = 0; i < sums.size(); ++i) {
        RETURN_IF_ERROR(op.Add(stream, addend, kScales[i], sums[i]));
      }
      return absl::OkStatus();
    });
    return sums;
  });
  for (size_t i = 0; i < kScales.size(); ++i) {
    SCOPED_TRACE(kScales[i]);
    std::vector<float> expected = whole;
    const std::vector<float> scaled = Scaled(part, kScales[i]);
    ForEachElement([&](size_t in_whole, size_t in_part) {
      expected[in_whole] = Sum(whole[in_whole], scaled[in_part]);
    });
    EXPECT_THAT(results[i], Pointwise(Eq(), Rounded(expected)));
  }
}

TEST_P(Columns, AreTaken) {
  const std::vector<float> whole = Random(of_whole(), 3);
  const auto results = ResultsAtAnyAddress([&](OpBench& bench) {
    ColumnsOp& op = bench.Create(shape());
    const Tensor from = bench.Operand(of_whole(), whole);
    std::array<Tensor, kScales.size()> parts;
    for (Tensor& part : parts) part = bench.Result(of_part());
    bench.Run([&](Stream& stream) -> absl::Status {
      for (size_t i = 0; i < parts.size(); ++i) {
        RETURN_IF_ERROR(op.Take(stream, from, kScales[i], parts[i]));
      }
      return absl::OkStatus();
    });
    return parts;
  });
  std::vector<float> taken(static_cast<size_t>(of_part().elements()));
  ForEachElement([&](size_t in_whole, size_t in_part) { taken[in_part] = whole[in_whole]; });
  for (size_t i = 0; i < kScales.size(); ++i) {
    SCOPED_TRACE(kScales[i]);
    EXPECT_THAT(results[i], Pointwise(Eq(), Rounded(Scaled(taken, kScales[i]))));
  }
}

std::string NameOf(const ColumnsShape& s) {
  return absl::StrCat(s.rows, "x", s.columns, "from", s.first, "count", s.count);
}

// Rows, columns, first and count. Vectors of 16 bytes have 4 or 8 elements; the last shape is more
// than one tile of a CPU device.
INSTANTIATE_OP_TEST(Columns, NameOf, ColumnsShape{}, ColumnsShape{3, 5, 0, 2},
                    ColumnsShape{2, 9, 4, 5}, ColumnsShape{4, 7, 0, 7}, ColumnsShape{5, 6, 3, 1},
                    ColumnsShape{7, 32, 8, 16}, ColumnsShape{6, 32, 0, 32},
                    ColumnsShape{6, 32, 4, 8}, ColumnsShape{6, 32, 5, 8}, ColumnsShape{6, 36, 8, 8},
                    ColumnsShape{6, 33, 8, 16}, ColumnsShape{6, 32, 8, 13},
                    ColumnsShape{40, 600, 40, 512});

TEST(ColumnsRefusal, IsAnInvalidArgument) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ExpectInvalid<ColumnsShape>({{.rows = 0},
                               {.rows = kMost},
                               {.columns = -1},
                               {.columns = kMost},
                               {.columns = 4, .count = 0},
                               {.columns = 4, .count = 5},
                               {.columns = 4, .first = -1, .count = 2},
                               {.columns = 4, .first = 3, .count = 2},
                               {.columns = 4, .first = 4},
                               {.columns = 4, .first = kMost}});
}

}  // namespace
}  // namespace stagecoach::kernels::columns_test
