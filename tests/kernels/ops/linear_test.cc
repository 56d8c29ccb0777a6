#include "kernels/ops/linear.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quantized_matrix.h"
#include "tests/kernels/ops/linear_fixture.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::linear_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::LinearTest;
using ::stagecoach::testing::NameOfLinear;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpValues;
using ::stagecoach::testing::ProductBackends;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;

using Linear = LinearTest;

TEST_P(Linear, ForwardMatchesReference) { ExpectForward(); }

TEST_P(Linear, BackwardMatchesReferenceApartAtOnceAndAside) { ExpectBackward(/*adds=*/false); }

TEST_P(Linear, BackwardAddsToWhatIsThere) { ExpectBackward(/*adds=*/true); }

LinearShape WithQuantized(LinearShape shape, Quantization kind,
                          const std::vector<int64_t>& parts = {}) {
  shape.quantized = {kind, shape.inputs, shape.outputs, parts};
  return shape;
}

// One row, one input, one output; odd extents, multiples of 8 and 16, and mixtures of them; sizes
// around those of tiles and vectors; many rows, so that sums of columns are divided into blocks.
std::vector<LinearShape> Cases() {
  // With quantized weights that a backend expands forward, and with some that it does not.
  std::vector<LinearShape> cases = {
      WithQuantized({17, 64, 32, Activation::kGelu}, Quantization::kNf4),
      WithQuantized({4, 64, 32, Activation::kRelu, /*has_bias=*/false}, Quantization::kInt8),
      WithQuantized({5, 48, 33}, Quantization::kNf4Single)};
  for (const Activation activation : kAllActivations) {
    cases.insert(cases.end(), {{3, 1, 5, activation},
                               {17, 33, 65, activation},
                               {64, 48, 32, activation},
                               {17, 24, 41, activation, /*has_bias=*/false}});
  }
  // Variants of what follows products, for all types or for some.
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    cases.insert(cases.end(), {{1, 1, 1, activation},
                               {1, 7, 1, activation},
                               {5, 4, 1, activation},
                               {1, 16, 8, activation},
                               {16, 24, 37, activation},
                               {9, 13, 40, activation},
                               {8, 8, 8, activation},
                               {33, 784, 10, activation},
                               {700, 8, 24, activation},
                               {700, 5, 3, activation},
                               {300, 24, 40, activation, /*has_bias=*/false}});
  }
  return cases;
}
INSTANTIATE_OP_TEST_ON(ProductBackends(), Linear, NameOfLinear, ::testing::ValuesIn(Cases()));

// Without a tuning file no device has kernels that do.
TEST_P(Linear, TakesNoNeighbors) {
  if (shape().rows > 8) return;
  OpBench bench(backend().variants.front());
  LinearShape forward = shape();
  forward.forward_only = true;
  LinearOp& op = bench.Create(forward);
  EXPECT_FALSE(op.takes_neighbors());
  bench.Run([&](Stream& stream) {
    EXPECT_THAT(op.ForwardWithNeighbors(stream, {}, {}, {}, {}, {}, {}, nullptr),
                StatusIs(absl::StatusCode::kUnimplemented));
    return absl::OkStatus();
  });
}

using LinearForward = LinearTest;

TEST_P(LinearForward, MatchesReference) { ExpectForward(); }

// Of few rows and of more; with inputs and outputs that some backends multiply as they are stored,
// and with others; of one group of inputs, of as many as warps, and of more; of a part of a strip
// of outputs, of several, and of so many that strips are wider; of so many inputs that they are
// divided into pieces, the last of which has fewer; in parts.
std::vector<LinearShape> QuantizedCases() {
  std::vector<LinearShape> cases;
  const auto add = [&](const LinearShape& shape, const std::vector<int64_t>& parts = {}) {
    for (const Quantization kind : kAllQuantizations) {
      cases.push_back(WithQuantized(shape, kind, parts));
    }
  };
  add({1, 64, 32});
  add({3, 128, 96, Activation::kNone, /*has_bias=*/false});
  add({8, 576, 160}, {96, 33, 31});
  add({16, 1088, 48});
  add({9, 192, 64, Activation::kGelu});
  add({17, 64, 32});
  add({2, 64, 33, Activation::kRelu});
  add({6, 65, 24});
  add({2, 64, 64}, std::vector<int64_t>(32, 2));
  add({3, 128, 8224}, {8000, 224});
  add({16, 64, 7696}, {7601, 95});
  add({9, 8256, 32}, {31, 1});
  add({1, 16576, 64, Activation::kNone, /*has_bias=*/false});
  return cases;
}
INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearForward, NameOfLinear,
                       ::testing::ValuesIn(QuantizedCases()));

// Each row of x has a single one, so that a result is a value of the weight.
class LinearOfOnes : public LinearTest {
 protected:
  OpValues RowsOfWeight(absl::Span<const int64_t> rows) const {
    const QuantizedMatrix& matrix = *shape().quantized;
    return Results([&](OpBench& bench) {
      std::vector<float> x(static_cast<size_t>(inputs().elements()));
      for (size_t r = 0; r < rows.size(); ++r) {
        x[r * static_cast<size_t>(shape().inputs) + static_cast<size_t>(rows[r])] = 1.0F;
      }
      LinearOp& op = bench.Create(shape());
      const Tensor on_x = bench.Operand(inputs(), x), y = bench.Result(outputs());
      const Tensor w = {bench.PlaceAll<std::byte>(stored_), DType::kUint8, Shape{matrix.bytes()}};
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) { return op.Forward(stream, on_x, w, {}, {}, y, workspace); });
      return y;
    });
  }

  void SetUp() override {
    LinearTest::SetUp();
    const QuantizedMatrix& matrix = *shape().quantized;
    stored_.resize(static_cast<size_t>(matrix.bytes()));
    Quantize(matrix, RandomNormal(weights().elements(), 2), absl::MakeSpan(stored_));
    w_.resize(static_cast<size_t>(weights().elements()));
    Dequantize(matrix, stored_, absl::MakeSpan(w_));
    w_ = Rounded(w_);
  }

  std::vector<std::byte> stored_;
  std::vector<float> w_;
};

TEST_P(LinearOfOnes, HasTheValuesOfTheWeight) {
  const bool is_small = shape().inputs * shape().outputs < 20000;
  const int64_t step = is_small ? shape().rows : shape().inputs / 3 - 2;
  for (int64_t first = 0; first < shape().inputs; first += step) {
    std::vector<int64_t> rows;
    OpValues expected;
    for (int64_t r = 0; r < shape().rows; ++r) {
      rows.push_back((first + r) % shape().inputs);
      const auto from = w_.begin() + rows.back() * shape().outputs;
      expected.insert(expected.end(), from, from + shape().outputs);
    }
    EXPECT_THAT(RowsOfWeight(rows), HasTheBitsOf(expected)) << first;
  }
}

// All inputs of some groups in narrow strips; some in wide ones, and some of several pieces.
std::vector<LinearShape> OnesCases() {
  std::vector<LinearShape> cases;
  for (const Quantization kind : kAllQuantizations) {
    cases.push_back(WithQuantized({16, 128, 96, Activation::kNone, false}, kind, {31, 65}));
    cases.push_back(WithQuantized({4, 64, 7712, Activation::kNone, false}, kind));
    cases.push_back(WithQuantized({16, 16576, 32, Activation::kNone, false}, kind));
  }
  return cases;
}
INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearOfOnes, NameOfLinear,
                       ::testing::ValuesIn(OnesCases()));

using LinearOfIndependentRows = LinearTest;

TEST_P(LinearOfIndependentRows, HasTheBitsOfEachRowAlone) {
  OpValues alone;
  for (int64_t row = 0; row < shape().rows; ++row) {
    const OpValues one = ForwardOfRows(row, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (int64_t rows = 2; rows <= shape().rows; rows = 2 * rows + 1) {
    const auto end = alone.begin() + rows * shape().outputs;
    EXPECT_THAT(ForwardOfRows(0, rows), HasTheBitsOf(OpValues(alone.begin(), end))) << rows;
  }
  EXPECT_THAT(ForwardOfRows(0, shape().rows), HasTheBitsOf(alone));
}

std::vector<LinearShape> IndependentCases() {
  std::vector<LinearShape> cases;
  for (const Quantization kind : kAllQuantizations) {
    cases.push_back(WithQuantized({16, 640, 32}, kind));
    cases.push_back(WithQuantized({16, 8256, 32}, kind));
    cases.push_back(WithQuantized({7, 128, 96, Activation::kGelu}, kind, {64, 32}));
  }
  return cases;
}
INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearOfIndependentRows, NameOfLinear,
                       ::testing::ValuesIn(IndependentCases()));

using LinearInputGradient = LinearTest;

TEST_P(LinearInputGradient, HasTheSameDzWithoutDx) {
  EXPECT_THAT(BackwardInput(/*wants_dx=*/false)[0],
              HasTheBitsOf(BackwardInput(/*wants_dx=*/true)[0]));
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearInputGradient, NameOfLinear,
                       ::testing::Values(LinearShape{19, 30, 41}, /* nothing to do */
                                         LinearShape{19, 30, 41, Activation::kRelu},
                                         LinearShape{24, 32, 40, Activation::kGelu},
                                         LinearShape{19, 30, 41, Activation::kGeluExact}));

// Runs as CUDA graphs, the first of which is recorded in the second round.
using LinearReplayed = LinearTest;

TEST_P(LinearReplayed, HasTheSameBits) {
  const auto expected = ReplayBackwardWeight(/*rounds=*/1);
  const auto actual = ReplayBackwardWeight(/*rounds=*/3);
  EXPECT_THAT(actual[0], HasTheBitsOf(expected[0]));
  EXPECT_THAT(actual[1], HasTheBitsOf(expected[1]));
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearReplayed, NameOfLinear,
                       ::testing::Values(LinearShape{24, 32, 40, Activation::kGelu}));

TEST(LinearRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<LinearShape>(
      {{.rows = 0},
       {.rows = -1},
       {.inputs = 0},
       {.inputs = -1},
       {.outputs = 0},
       {.outputs = -1},
       {.rows = kHuge},
       {.inputs = kHuge},
       {.outputs = kHuge},
       {.inputs = 64, .outputs = 8, .quantized = {{Quantization::kNf4, 8, 64}}},
       {.inputs = 64,
        .outputs = 8,
        .independent_rows = true,
        .quantized = {{Quantization::kInt8, 64, 9}}},
       {.inputs = 64, .outputs = 8, .quantized = {{Quantization::kNf4, 64, 8, {5, 2}}}}});
}

}  // namespace
}  // namespace stagecoach::kernels::linear_test
