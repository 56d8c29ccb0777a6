#include "kernels/ops/dropout.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/dropout_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels::dropout_test {
namespace {

using reference::Vector;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::ToDouble;

constexpr DropoutKey kKey{.seed = 0x123456789ABCDEF0, .stream = 0x2FEDCBA987654321};

using Parameter = std::tuple<DType, DropoutShape>;
class CudaDropout : public ::testing::TestWithParam<Parameter> {
 protected:
  struct Options {
    int64_t offset = 0;
    bool in_place = false;
    bool numbered = true;
  };
  Vector Apply(const Options& options) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor x = gpu.Operand(type_, x_, options.offset);
      const Tensor y = options.in_place ? x : gpu.Result(type_, x.elements(), options.offset);
      EXPECT_EQ(LaunchDropout(gpu.stream(), ElementTypeOf(type_),
                              {.rows = shape_.rows,
                               .elements = shape_.elements,
                               .threshold = DropoutThreshold(shape_.rate),
                               .scale = DropoutScale(shape_.rate),
                               .seed = kKey.seed,
                               .random_stream = kKey.stream,
                               .first_sample =
                                   options.numbered ? gpu.Upload<int64_t>({kFirstSample}) : nullptr,
                               .x = x.data,
                               .y = y.data}),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
  }
  Vector Expected(int64_t first_sample) const {
    const Vector y = reference::Dropout(shape_, kKey, first_sample, x_);
    return ToDouble(RoundedTo(type_, std::vector<float>(y.begin(), y.end())));
  }

  // So that numbers of blocks have more than 32 bits.
  static constexpr int64_t kFirstSample = int64_t{1} << 33;
  const DType type_ = std::get<0>(GetParam());
  const DropoutShape shape_ = std::get<1>(GetParam());
  const std::vector<float> x_ = RoundedTo(type_, RandomNormal(shape_.rows* shape_.elements, 1));
};

TEST_P(CudaDropout, IsTheReferenceRounded) { EXPECT_EQ(Apply({}), Expected(kFirstSample)); }

TEST_P(CudaDropout, IsTheSameAtAnyAddress) {
  EXPECT_EQ(Apply({.offset = 1}), Expected(kFirstSample));
}

TEST_P(CudaDropout, MayOverwriteItsOperand) {
  EXPECT_EQ(Apply({.in_place = true}), Expected(kFirstSample));
}

TEST_P(CudaDropout, BeginsWithSampleZeroWithoutANumber) {
  EXPECT_EQ(Apply({.numbered = false}), Expected(0));
}

std::string NameOfCase(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [type, shape] = info.param;
  return absl::StrCat(NameOf(type), "_", shape.rows, "x", shape.elements);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaDropout,
    ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                       ::testing::Values(DropoutShape{1, 1, 0.5F}, DropoutShape{5, 7, 0.25F},
                                         DropoutShape{3, 4, 0.5F}, DropoutShape{3, 24, 0.1F},
                                         DropoutShape{2, 1032, 0.9F}, DropoutShape{40, 30, 0.5F})),
    NameOfCase);

}  // namespace
}  // namespace stagecoach::kernels::dropout_test
