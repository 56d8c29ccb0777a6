#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/cuda/warpgroup_test_kernels.h"

namespace stagecoach::kernels::warpgroup_product_test {
namespace {

using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::cuda::WarpgroupProduct;
using testing::cuda::WarpgroupProducts;

// Returns small integers, whose products and sums are exact, without a pattern that another layout
// would share.
std::vector<float> SmallIntegers(int count, uint32_t seed) {
  std::vector<float> numbers;
  uint32_t state = seed;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    numbers.push_back(static_cast<float>(static_cast<int>(state >> 28) - 8));
  }
  return numbers;
}

TEST(WarpgroupProduct, IsThatOfTheMatricesInEachLayout) {
  if (!testing::HasWarpgroupProducts()) GTEST_SKIP() << "the GPU has no products of warpgroups";
  for (const WarpgroupProduct& product : WarpgroupProducts()) {
    SCOPED_TRACE(absl::StrCat(product.rows, " x ", product.columns, ", ", product.terms, " terms, ",
                              product.b_has_terms_as_rows));
    const std::vector<float> a = SmallIntegers(product.rows * product.terms, 1);
    const std::vector<float> b = SmallIntegers(product.columns * product.terms, 2);
    std::vector<double> expected;
    for (int row = 0; row < product.rows; ++row) {
      for (int column = 0; column < product.columns; ++column) {
        double sum = 0;
        for (int term = 0; term < product.terms; ++term) {
          sum += a[row * product.terms + term] *
                 b[product.b_has_terms_as_rows ? term * product.columns + column
                                               : column * product.terms + term];
        }
        expected.push_back(sum);
      }
    }
    const auto results = InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor c = gpu.Result(DType::kFloat32, product.rows * product.columns);
      EXPECT_EQ(product.launch(gpu.stream(), gpu.Operand(DType::kBfloat16, a).bf16(),
                               gpu.Operand(DType::kBfloat16, b).bf16(), c.f32()),
                cudaSuccess);
      return std::vector<std::vector<double>>{gpu.Values(c)};
    });
    EXPECT_EQ(results[0], expected);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::warpgroup_product_test
