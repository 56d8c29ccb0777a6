// Operations of rows that are positions of several sequences: what a row gives has the bits that it
// has alone, and they are right.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/head.h"
#include "kernels/ops/linear.h"
#include "kernels/quantized_matrix.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/precision.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::independent_rows_test {
namespace {

using ::stagecoach::testing::HasOnCpu;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::TestDevice;

using Values = std::vector<double>;

class IndependentRows : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const absl::Status has = HasOnCpu(GetParam());
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
  static DType type() {
    return GetParam() == Precision::kFloat32 ? DType::kFloat32 : DType::kBfloat16;
  }
  static std::vector<float> Numbers(int64_t count, uint64_t stream) {
    return RoundedTo(type(), RandomNormal(count, stream));
  }
  // x w, in double, each to within what sums of `inputs` float32 numbers and one rounding may miss.
  static void ExpectProduct(const Values& y, const std::vector<float>& x,
                            const std::vector<float>& w, int64_t inputs, int64_t outputs,
                            bool is_transposed) {
    const double sum_bound =
        static_cast<double>(inputs + 2) * PrecisionOf(DType::kFloat32).unit_roundoff;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto r = static_cast<int64_t>(i) / outputs, o = static_cast<int64_t>(i) % outputs;
      double exact = 0.0, magnitude = 0.0;
      for (int64_t k = 0; k < inputs; ++k) {
        const double term =
            static_cast<double>(x[static_cast<size_t>(r * inputs + k)]) *
            static_cast<double>(
                w[static_cast<size_t>(is_transposed ? o * inputs + k : k * outputs + o)]);
        exact += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(y[i], exact,
                  sum_bound * magnitude + PrecisionOf(type()).unit_roundoff * std::fabs(exact))
          << "row " << r << ", column " << o;
    }
  }
  static void ExpectOfAttention(const CachedAttentionShape& shape);
  // Expects the same of all rows at once as of one row at a time.
  void ExpectAlike(const std::string& what, int64_t rows, int64_t inputs,
                   const std::vector<float>& x,
                   const std::function<Values(int64_t rows, absl::Span<const float> x)>& forward) {
    const Values all = forward(rows, x);
    Values alone;
    for (int64_t r = 0; r < rows; ++r) {
      const Values row = forward(1, absl::MakeConstSpan(x).subspan(static_cast<size_t>(r * inputs),
                                                                   static_cast<size_t>(inputs)));
      alone.insert(alone.end(), row.begin(), row.end());
    }
    EXPECT_EQ(all, alone) << what;
  }
};

// Extents around those of vectors, panels and tiles.
TEST_P(IndependentRows, OfALinearLayer) {
  for (const int64_t rows : {2, 4, 7, 16}) {
    for (const auto& [inputs, outputs] :
         {std::pair<int64_t, int64_t>{1, 1}, {33, 5}, {300, 40}, {260, 600}, {513, 33}}) {
      const std::vector<float> x = Numbers(rows * inputs, 1), w = Numbers(inputs * outputs, 2);
      const auto forward = [&, inputs = inputs, outputs = outputs](int64_t own_rows,
                                                                   absl::Span<const float> own) {
        TestDevice device(2, GetParam());
        const auto op = device.ops()
                            .Create(LinearShape{.rows = own_rows,
                                                .inputs = inputs,
                                                .outputs = outputs,
                                                .has_bias = false,
                                                .independent_rows = true})
                            .value();
        const Tensor y = device.Result(Shape{own_rows, outputs}, type());
        std::byte* const workspace = device.Workspace(op->workspace_bytes());
        EXPECT_OK(device.Run([&](Stream& stream) {
          return op->Forward(stream, device.Operand(Shape{own_rows, inputs}, own, type()),
                             device.Operand(Shape{inputs, outputs}, w, type()), {}, {}, y,
                             workspace);
        }));
        return TestDevice::Values(y);
      };
      ExpectAlike(absl::StrCat(rows, " x ", inputs, " x ", outputs), rows, inputs, x, forward);
      ExpectProduct(forward(rows, x), x, w, inputs, outputs, /*is_transposed=*/false);
    }
  }
}

// A quantized weight has the results of its values, to the bit: of several tiles of columns and
// groups of 64 inputs, and with blocks that straddle rows.
TEST_P(IndependentRows, OfALinearLayerWhoseWeightIsQuantized) {
  for (const QuantizedMatrix& matrix :
       std::vector<QuantizedMatrix>{{Quantization::kNf4, 1, 1},
                                    {Quantization::kNf4, 128, 600, {400, 200}},
                                    {Quantization::kNf4, 70, 33},
                                    {Quantization::kNf4Single, 320, 1200},
                                    {Quantization::kInt8, 130, 40}}) {
    const int64_t inputs = matrix.inputs, outputs = matrix.outputs;
    std::vector<std::byte> stored(static_cast<size_t>(matrix.bytes()));
    Quantize(matrix, Numbers(inputs * outputs, 2), absl::MakeSpan(stored));
    std::vector<float> w(static_cast<size_t>(inputs * outputs));
    Dequantize(matrix, stored, absl::MakeSpan(w));
    for (const int64_t rows : {1, 2, 7, 16}) {
      const std::vector<float> x = Numbers(rows * inputs, 1), b = Numbers(outputs, 3);
      const auto forward = [&](bool is_quantized) {
        TestDevice device(2, GetParam());
        LinearShape shape = {.rows = rows,
                             .inputs = inputs,
                             .outputs = outputs,
                             .activation = Activation::kRelu,
                             .independent_rows = true};
        if (is_quantized) shape.quantized = matrix;
        const auto op = device.ops().Create(shape).value();
        const Tensor y = device.Result(Shape{rows, outputs}, type());
        const Tensor weight = is_quantized
                                  ? Tensor{stored.data(), DType::kUint8, Shape{matrix.bytes()}}
                                  : device.Operand(Shape{inputs, outputs}, w, type());
        std::byte* const workspace = device.Workspace(op->workspace_bytes());
        EXPECT_OK(device.Run([&](Stream& stream) {
          return op->Forward(stream, device.Operand(Shape{rows, inputs}, x, type()), weight,
                             device.Operand(Shape{outputs}, b, type()), {}, y, workspace);
        }));
        return TestDevice::Values(y);
      };
      EXPECT_EQ(forward(true), forward(false)) << matrix.ToString() << ", " << rows << " rows";
    }
  }
}

TEST_P(IndependentRows, OfAHead) {
  for (const int64_t rows : {2, 5, 16}) {
    for (const auto& [features, classes] : {std::pair<int64_t, int64_t>{3, 7}, {130, 600}}) {
      const std::vector<float> x = Numbers(rows * features, 1), w = Numbers(classes * features, 2);
      const auto forward = [&, features = features, classes = classes](
                               int64_t own_rows, absl::Span<const float> own) {
        TestDevice device(2, GetParam());
        const auto op = device.ops()
                            .Create(HeadShape{.rows = own_rows,
                                              .features = features,
                                              .classes = classes,
                                              .independent_rows = true})
                            .value();
        const Tensor y = device.Result(Shape{own_rows, classes}, type());
        std::byte* const workspace = device.Workspace(op->workspace_bytes());
        int64_t position = 1;
        std::vector<int32_t> chosen(3, -2);
        EXPECT_OK(device.Run([&](Stream& stream) {
          const Tensor on_x = device.Operand(Shape{own_rows, features}, own, type());
          const Tensor on_w = device.Operand(Shape{classes, features}, w, type());
          absl::Status status = op->Forward(stream, on_x, on_w, {}, nullptr, y, {}, workspace);
          status.Update(op->Choose(
              stream, on_x, on_w,
              {.classes = classes, .position = &position, .chosen = chosen.data()}, workspace));
          return status;
        }));
        const Values values = TestDevice::Values(y);
        const auto first = values.begin(), end = values.begin() + classes;
        EXPECT_THAT(chosen, ::testing::ElementsAre(-2, std::max_element(first, end) - first, -2));
        EXPECT_EQ(position, 2);
        return values;
      };
      ExpectAlike(absl::StrCat(rows, " x ", features, " x ", classes), rows, features, x, forward);
      ExpectProduct(forward(rows, x), x, w, features, classes, /*is_transposed=*/true);
    }
  }
}

// Expects what they do alone of sequences that begin one after the other, in rows that they change,
// with padding between them.
void IndependentRows::ExpectOfAttention(const CachedAttentionShape& shape) {
  constexpr int64_t kSequences = 3, kPositions = 6, kInputs = 8 * 6, kOutputs = 4 * 6;
  const std::vector<float> qkv = Numbers(kSequences * kPositions * kInputs, 1);
  const auto qkv_of = [&](const CachedRow& row) {
    return absl::MakeConstSpan(qkv).subspan(
        static_cast<size_t>((row.sequence * kPositions + row.position) * kInputs), kInputs);
  };
  // What rows give that come together, in steps.
  const auto given = [&](int64_t sequences, const std::vector<std::vector<CachedRow>>& steps) {
    TestDevice device(2, GetParam());
    CachedAttentionShape own = shape;
    own.rows = std::ssize(steps.front());
    own.sequences = sequences;
    const auto op = device.ops().Create(own).value();
    std::byte* const cache = device.Workspace(op->cache_bytes());
    std::byte* const workspace = device.Workspace(op->workspace_bytes());
    std::vector<Values> all;
    for (const std::vector<CachedRow>& rows : steps) {
      std::vector<float> x;
      for (const CachedRow& row : rows) {
        if (row.position == kPositions) {
          x.insert(x.end(), kInputs, std::numeric_limits<float>::quiet_NaN());
        } else {
          x.insert(x.end(), qkv_of(row).begin(), qkv_of(row).end());
        }
      }
      std::vector<CachedRow> places = rows;
      if (sequences == 1) places.front().sequence = 0;
      const Tensor y = device.Result(Shape{own.rows, kOutputs}, type());
      const Tensor on_x = device.Operand(Shape{own.rows, kInputs}, x, type());
      EXPECT_OK(device.Run([&](Stream& stream) {
        return op->Forward(stream, places.data(), on_x, cache, y, workspace);
      }));
      const Values values = TestDevice::Values(y);
      for (int64_t r = 0; r < own.rows; ++r) {
        all.emplace_back(values.begin() + r * kOutputs, values.begin() + (r + 1) * kOutputs);
      }
    }
    return all;
  };
  std::vector<std::vector<Values>> alone;  // by sequence and position
  for (int64_t s = 0; s < kSequences; ++s) {
    std::vector<std::vector<CachedRow>> steps;
    for (int64_t t = 0; t < kPositions; ++t) steps.push_back({{.position = t, .sequence = s}});
    alone.push_back(given(1, steps));
  }
  std::vector<std::vector<CachedRow>> steps;
  std::vector<Values> expected;
  for (int64_t step = 0; step < kPositions + kSequences - 1; ++step) {
    std::vector<CachedRow>& rows = steps.emplace_back();
    for (int64_t r = 0; r < kSequences; ++r) {
      const int64_t s = (r + step) % kSequences, t = step - s;
      const bool is_there = t >= 0 && t < kPositions;
      rows.push_back({.position = is_there ? t : kPositions, .sequence = is_there ? s : 0});
      expected.push_back(is_there ? alone[static_cast<size_t>(s)][static_cast<size_t>(t)]
                                  : Values(kOutputs, 0.0));
    }
  }
  EXPECT_EQ(given(kSequences, steps), expected);
}

TEST_P(IndependentRows, OfAttentionWithACacheForEach) {
  CachedAttentionShape shape = {.positions = 6,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_size = 6,
                                .rotary_base = 100.0F,
                                .rows_are_sequences = true};
  ExpectOfAttention(shape);
  shape.window = 3;
  ExpectOfAttention(shape);
  shape.scale = 0.5F;
  shape.score_cap = 2.0F;
  ExpectOfAttention(shape);
}

INSTANTIATE_TEST_SUITE_P(OnCpu, IndependentRows,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16),
                         [](const auto& test) {
                           return test.param == Precision::kFloat32 ? "Float32" : "Bfloat16";
                         });

}  // namespace
}  // namespace stagecoach::kernels::independent_rows_test
