#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/elementwise_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::elementwise_test {
namespace {

using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::ToDouble;

enum class Result { kSeparate, kInFirst, kInSecond };

// A sum is exact but for one rounding, so there is no bound.
void ExpectSums(DType type, int64_t elements, int64_t offset, Result where) {
  const std::vector<float> a = RoundedTo(type, RandomNormal(elements, 1));
  const std::vector<float> b = RoundedTo(type, RandomNormal(elements, 2));
  std::vector<float> sums;
  for (size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + b[i]);
  const auto actual = InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor first = gpu.Operand(type, a, offset), second = gpu.Operand(type, b, offset);
    const Tensor y = where == Result::kInFirst    ? first
                     : where == Result::kInSecond ? second
                                                  : gpu.Result(type, elements, offset);
    EXPECT_EQ(
        LaunchAdd(gpu.stream(), ElementTypeOf(type), elements, first.data, second.data, y.data),
        cudaSuccess);
    return std::vector<std::vector<double>>{gpu.Values(y)};
  });
  EXPECT_TRUE(actual[0] == ToDouble(RoundedTo(type, sums)));
}

using Parameter = std::tuple<DType, int64_t>;
class CudaAdd : public ::testing::TestWithParam<Parameter> {
 protected:
  const DType type_ = std::get<0>(GetParam());
  const int64_t elements_ = std::get<1>(GetParam());
};

TEST_P(CudaAdd, IsTheSumRoundedOnce) { ExpectSums(type_, elements_, 0, Result::kSeparate); }

TEST_P(CudaAdd, ResultMayOverwriteEitherOperand) {
  ExpectSums(type_, elements_, 0, Result::kInFirst);
  ExpectSums(type_, elements_, 0, Result::kInSecond);
}

TEST_P(CudaAdd, OperandsNeedNoAlignment) { ExpectSums(type_, elements_, 1, Result::kSeparate); }

// Around the sizes of vectors and of what a block of threads has.
INSTANTIATE_TEST_SUITE_P(Elements, CudaAdd,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::Values(1, 3, 4, 7, 8, 9, 1000, 4095, 4096,
                                                              4097, 8191, 8192, 8193, 100003)),
                         [](const ::testing::TestParamInfo<Parameter>& param_info) {
                           return absl::StrCat(NameOf(std::get<0>(param_info.param)), "_",
                                               std::get<1>(param_info.param));
                         });

TEST(CudaAddOfNothing, DoesNothing) {
  EmulatedGpu gpu;
  EXPECT_EQ(LaunchAdd(gpu.stream(), ElementType::kFloat32, 0, nullptr, nullptr, nullptr),
            cudaSuccess);
}

}  // namespace
}  // namespace stagecoach::kernels::elementwise_test
