#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/linear/quantized_operand.h"
#include "kernels/cuda/ops/linear/quantized_rows_kernels.h"
#include "kernels/ops/linear.h"
#include "kernels/quantized_matrix.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::quantized_rows_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using testing::DotBound;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

// Of blocks: those of compute capability 8.6, 8.0 and 9.0.
constexpr int64_t kSharedBytes[] = {99 << 10, 163 << 10, 227 << 10};

QuantizedRowsSplit SplitOf(Quantization kind, int64_t inputs, int64_t shared_bytes) {
  return kind == Quantization::kInt8 ? SplitInt8Rows(inputs, shared_bytes)
                                     : SplitNf4Rows(inputs, shared_bytes);
}

struct Case {
  Quantization kind;
  DType type;
  int64_t shared_bytes;
};

class QuantizedRows : public ::testing::TestWithParam<Case> {
 protected:
  QuantizedRows()
      : stored_(static_cast<size_t>(matrix_.bytes())),
        w_(static_cast<size_t>(kInputs * kOutputs)),
        x_(RoundedTo(GetParam().type, RandomNormal(kRows * kInputs, 1))) {
    Quantize(matrix_, RandomNormal(kInputs * kOutputs, 2), absl::MakeSpan(stored_));
    Dequantize(matrix_, stored_, absl::MakeSpan(w_));
    w_ = RoundedTo(GetParam().type, w_);
  }

  Vector Forward(int64_t rows) const {
    const auto& [kind, type, shared_bytes] = GetParam();
    const QuantizedRowsSplit split = SplitOf(kind, kInputs, shared_bytes);
    return InEveryOrder([&, type = type](EmulatedGpu& gpu) {
      const Tensor x =
          gpu.Operand(type, absl::MakeConstSpan(x_).first(static_cast<size_t>(rows * kInputs)));
      const Tensor y = gpu.Result(type, rows * kOutputs);
      const Tensor sums = gpu.Result(
          DType::kFloat32, split.sum_bytes(rows, kOutputs) / static_cast<int64_t>(sizeof(float)));
      const std::byte* const stored = gpu.Upload(absl::MakeConstSpan(stored_));
      const QuantizedRowsArguments arguments = {
          .split = split, .rows = rows, .x = x.data, .y = y.data, .partial_sums = sums.f32()};
      const QuantizedOperand operand(matrix_);
      const ElementType element = testing::ElementTypeOf(type);
      EXPECT_EQ(operand.is_int8()
                    ? LaunchInt8Rows(gpu.stream(), element, operand.Int8At(stored), arguments)
                    : LaunchNf4Rows(gpu.stream(), element, operand.parts().front(),
                                    operand.Nf4At(stored), arguments),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
  }

  static constexpr int64_t kRows = 9, kInputs = 64 * 70, kOutputs = 96;
  const QuantizedMatrix matrix_ = {GetParam().kind, kInputs, kOutputs, {}};
  std::vector<std::byte> stored_;
  std::vector<float> w_;
  const std::vector<float> x_;
};

TEST_P(QuantizedRows, MatchReferenceInTheBitsOfEachRow) {
  const LinearShape shape = {kRows, kInputs, kOutputs, Activation::kNone, /*has_bias=*/false};
  const auto magnitudes = [](Vector values) {
    for (double& value : values) value = std::abs(value);
    return values;
  };
  const Vector x = ToDouble(x_), w = ToDouble(w_);
  const Vector exact = reference::LinearForward(shape, x, w, {}).y;
  Vector bound = reference::LinearForward(shape, magnitudes(x), magnitudes(w), {}).y;
  for (size_t i = 0; i < bound.size(); ++i) {
    bound[i] = StoredBound(exact[i], DotBound(kInputs, bound[i]), GetParam().type);
  }
  const Vector all = Forward(kRows), one = Forward(1), three = Forward(3);
  EXPECT_THAT(all, CloseTo(exact, bound));
  EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
  EXPECT_TRUE(std::equal(three.begin(), three.end(), all.begin()));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Quantization kind : kAllQuantizations) {
    for (const DType type : testing::kActivationTypes) {
      for (const int64_t shared_bytes : kSharedBytes) cases.push_back({kind, type, shared_bytes});
    }
  }
  return cases;
}
std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) {
  const auto& [kind, type, shared_bytes] = info.param;
  std::string name = absl::StrCat(QuantizationName(kind), "_", testing::NameOf(type), "_",
                                  shared_bytes >> 10, "_KiB");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Splits, QuantizedRows, ::testing::ValuesIn(Cases()), NameOfCase);

TEST(QuantizedRowsSplit, HasAllGroupsInAsFewPiecesAsScalesFit) {
  for (const Quantization kind : kAllQuantizations) {
    for (const int64_t shared_bytes : kSharedBytes) {
      for (const int64_t groups : {1, 3, 16, 17, 33, 64, 224, 448, 1000}) {
        const QuantizedRowsSplit split = SplitOf(kind, 64 * groups, shared_bytes);
        EXPECT_GE(int64_t{split.pieces} * split.warps * split.warp_groups, groups);
        EXPECT_LE(split.warps, 16);
        EXPECT_LE(split.warp_groups, 8);
        if (split.pieces > 1) {
          EXPECT_LT((split.pieces - 1) * int64_t{split.warps} * 8, groups);
        }
      }
    }
  }
  EXPECT_EQ(SplitNf4Rows(14336, 227 << 10).pieces, 2);
  EXPECT_EQ(SplitNf4Rows(4096, 227 << 10).pieces, 1);
}

}  // namespace
}  // namespace stagecoach::kernels::quantized_rows_test
