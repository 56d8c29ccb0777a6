#include "kernels/ops/dequantize.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::dequantize_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::testing::Eq;
using ::testing::Pointwise;

class DequantizedMatrix : public OpTest<QuantizedMatrix> {
 protected:
  size_t elements() const { return static_cast<size_t>(shape().inputs * shape().outputs); }
  // Returns what the operation makes of a stored matrix.
  std::vector<double> ValuesOf(absl::Span<const std::byte> stored) const {
    return Results([&](OpBench& bench) {
      DequantizeOp& op = bench.Create(DequantizeShape{shape()});
      const Tensor from = {bench.PlaceAll(stored), DType::kUint8, Shape{shape().bytes()}};
      const Tensor values = bench.Result({shape().inputs, shape().outputs});
      bench.Run([&](Stream& stream) { return op.Run(stream, from, values); });
      return values;
    });
  }
  std::vector<float> Expected(absl::Span<const std::byte> stored) const {
    std::vector<float> values(elements());
    Dequantize(shape(), stored, absl::MakeSpan(values));
    return Rounded(values);
  }
};

TEST_P(DequantizedMatrix, HasTheBitsOfTheDefinition) {
  std::vector<std::byte> stored(static_cast<size_t>(shape().bytes()));
  Quantize(shape(), RandomNormal(static_cast<int64_t>(elements()), 1), absl::MakeSpan(stored));
  EXPECT_THAT(ValuesOf(stored), Pointwise(Eq(), Expected(stored)));
}

TEST_P(DequantizedMatrix, OfZerosIsZero) {
  std::vector<std::byte> stored(static_cast<size_t>(shape().bytes()));
  Quantize(shape(), std::vector<float>(elements()), absl::MakeSpan(stored));
  EXPECT_THAT(ValuesOf(stored), ::testing::Each(0.0));
}

std::string NameOf(const QuantizedMatrix& matrix) {
  std::string name =
      absl::StrCat(QuantizationName(matrix.kind), "_", matrix.inputs, "x", matrix.outputs);
  if (!matrix.parts.empty()) {
    absl::StrAppend(&name, "in", matrix.parts.size(), "from", matrix.parts.front());
  }
  return absl::StrReplaceAll(name, {{"-", "_"}});
}

// Matrices with one scale for 64 rows and those with blocks that straddle rows; with outputs that
// fill vectors or do not; of more than one tile; in parts that begin at any output, or more of them
// than a kernel takes at a time.
std::vector<QuantizedMatrix> Matrices() {
  std::vector<QuantizedMatrix> matrices;
  for (const Quantization kind : kAllQuantizations) {
    for (const QuantizedMatrix& of : std::vector<QuantizedMatrix>{
             {.inputs = 1, .outputs = 1},
             {.inputs = 5, .outputs = 7},
             {.inputs = 48, .outputs = 16},
             {.inputs = 96, .outputs = 33},
             {.inputs = 64, .outputs = 1},
             {.inputs = 64, .outputs = 8},
             {.inputs = 64, .outputs = 28},
             {.inputs = 128, .outputs = 296},
             {.inputs = 192, .outputs = 13},
             {.inputs = 70, .outputs = 1304},
             {.inputs = 128, .outputs = 1304},
             {.inputs = 128, .outputs = 40, .parts = {24, 8, 8}},
             {.inputs = 128, .outputs = 40, .parts = {21, 12, 7}},
             {.inputs = 64, .outputs = 1600, .parts = {1088, 256, 256}},
             {.inputs = 48, .outputs = 40, .parts = {24, 8, 8}},
             {.inputs = 64, .outputs = 304, .parts = std::vector<int64_t>(38, 8)},
             {.inputs = 5, .outputs = 37, .parts = std::vector<int64_t>(37, 1)}}) {
      matrices.push_back(of);
      matrices.back().kind = kind;
    }
  }
  return matrices;
}
INSTANTIATE_OP_TEST_FROM(DequantizedMatrix, NameOf, Matrices());

TEST(DequantizeRefusal, IsAnInvalidArgument) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ExpectInvalid<DequantizeShape>({{{.inputs = 0}},
                                  {{.inputs = kMost}},
                                  {{.outputs = -1}},
                                  {{.outputs = kMost}},
                                  {{.outputs = 4, .parts = {2, 1}}},
                                  {{.outputs = 4, .parts = {4, 0}}}});
}

}  // namespace
}  // namespace stagecoach::kernels::dequantize_test
