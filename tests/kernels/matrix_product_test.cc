#include "kernels/cpu/products/matrix_product.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/plain_product.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::matrix_product_test {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::PlainProduct;
using ::stagecoach::testing::RandomNormal;

// Leading dimensions exceed the extents: nothing may be read or written between rows.
constexpr int64_t kGap = 3;

// An operand with NaN between its rows.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, bool is_transposed, uint64_t seed)
      : leading((is_transposed ? rows : columns) + kGap),
        row_stride(is_transposed ? 1 : leading),
        column_stride(is_transposed ? leading : 1),
        values(static_cast<size_t>((is_transposed ? columns : rows) * leading), std::nanf("")) {
    const std::vector<float> numbers = RandomNormal(rows * columns, seed);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        values[index(i, j)] = Bfloat16(numbers[static_cast<size_t>(i * columns + j)]);
      }
    }
  }

  size_t index(int64_t i, int64_t j) const {
    return static_cast<size_t>(i * row_stride + j * column_stride);
  }
  const void* DataAs(DType type) {
    rounded.assign(values.begin(), values.end());
    return type == DType::kFloat32 ? static_cast<const void*>(values.data()) : rounded.data();
  }

  int64_t leading, row_stride, column_stride;
  std::vector<float> values;  // each is a bfloat16
  std::vector<Bfloat16> rounded;
};

struct Case {
  int64_t m, n, k;
};

class MatrixProductTest : public ::testing::TestWithParam<Case> {
 protected:
  void ExpectProduct(DType type, bool transpose_a, bool transpose_b) {
    const auto [m, n, k] = GetParam();
    Matrix a(m, k, transpose_a, 1), b(k, n, transpose_b, 2);
    const int64_t ldc = n + kGap;
    ASSERT_OK_AND_ASSIGN(const auto product, MatrixProduct::Create(type,
                                                                   {.m = m,
                                                                    .n = n,
                                                                    .k = k,
                                                                    .transpose_a = transpose_a,
                                                                    .lda = a.leading,
                                                                    .transpose_b = transpose_b,
                                                                    .ldb = b.leading,
                                                                    .ldc = ldc,
                                                                    .may_accumulate = true},
                                                                   /*slots=*/1));
    std::vector<std::byte> scratchpad(static_cast<size_t>(product->scratchpad_bytes()));
    std::vector<float> c = RandomNormal(m * ldc, 3);
    for (const bool accumulate : {false, true}) {
      const PlainProduct plain(
          m, n, k, [&](int64_t i, int64_t l) { return a.values[a.index(i, l)]; },
          [&](int64_t l, int64_t j) { return b.values[b.index(l, j)]; }, accumulate, c, ldc);
      ASSERT_OK(product->Run(/*slot=*/0, a.DataAs(type), b.DataAs(type), accumulate, c.data(),
                             scratchpad.data()));
      EXPECT_THAT(c, CloseTo(plain.expected, plain.bounds)) << (accumulate ? "added" : "written");
    }
  }
};

TEST_P(MatrixProductTest, LeavesAloneWhatIsBetweenRows) {
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    if (type == DType::kBfloat16 && !CheckBfloat16OnCpu().ok()) continue;
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        SCOPED_TRACE(absl::StrCat(type == DType::kFloat32 ? "float32" : "bfloat16",
                                  transpose_a ? ", a transposed" : "",
                                  transpose_b ? ", b transposed" : ""));
        ExpectProduct(type, transpose_a, transpose_b);
      }
    }
  }
}

// Vectors and matrices; of one term, of less than a vector of them, and of several and a rest.
INSTANTIATE_TEST_SUITE_P(Of, MatrixProductTest,
                         ::testing::Values(Case{1, 1, 1}, Case{1, 1, 40}, Case{5, 1, 1},
                                           Case{5, 1, 4}, Case{33, 1, 70}, Case{1, 5, 1},
                                           Case{1, 5, 4}, Case{1, 33, 70}, Case{2, 2, 2},
                                           Case{17, 40, 33}),
                         [](const auto& tested) {
                           const Case& c = tested.param;
                           return absl::StrCat(c.m, "x", c.n, "_of_", c.k);
                         });

}  // namespace
}  // namespace stagecoach::kernels::matrix_product_test
