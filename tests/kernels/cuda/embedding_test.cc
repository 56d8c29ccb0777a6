#include "kernels/ops/embedding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/tokens/embedding_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels::embedding_test {
namespace {

using reference::Vector;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomLabels;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::ToDouble;

std::byte* Workspace(EmulatedGpu& gpu, int64_t ids, int64_t features) {
  return static_cast<std::byte*>(
      gpu.Result(DType::kFloat32, EmbeddingBackwardBytes(ids, features) / 4).data);
}

using Parameter = std::tuple<DType, EmbeddingShape>;
class CudaEmbedding : public ::testing::TestWithParam<Parameter> {
 protected:
  Vector Forward(int64_t offset = 0) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor y = gpu.Result(type_, count_ * shape_.features, offset);
      EXPECT_EQ(
          LaunchEmbeddingForward(
              gpu.stream(), ElementTypeOf(type_),
              {.ids_count = count_,
               .positions = shape_.positions,
               .vocabulary = shape_.vocabulary,
               .features = shape_.features,
               .scale = shape_.scale,
               .ids = gpu.Integers(ids_).i32(),
               .tokens = gpu.Operand(type_, tokens_, offset).data,
               .position_table =
                   shape_.has_positions ? gpu.Operand(type_, positions_, offset).data : nullptr,
               .y = y.data}),
          cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
  }

  Vector Backward(bool accumulate, int64_t offset = 0) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor dtokens = accumulate
                                 ? gpu.Operand(DType::kFloat32, dtokens_)
                                 : gpu.Result(DType::kFloat32, shape_.vocabulary * shape_.features);
      EXPECT_EQ(LaunchEmbeddingBackward(gpu.stream(), ElementTypeOf(type_),
                                        {.ids_count = count_,
                                         .vocabulary = shape_.vocabulary,
                                         .features = shape_.features,
                                         .scale = shape_.scale,
                                         .ids = gpu.Integers(ids_).i32(),
                                         .dy = gpu.Operand(type_, dy_, offset).data,
                                         .dtokens = dtokens.f32(),
                                         .accumulate = accumulate,
                                         .workspace = Workspace(gpu, count_, shape_.features)}),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(dtokens)};
    })[0];
  }

  // Adds groups of rows in the order of their ids, and then the groups, in float32: so there is no
  // bound.
  Vector Sums(bool accumulate) const {
    std::vector<size_t> order(ids_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t left, size_t right) { return ids_[left] < ids_[right]; });
    std::vector<float> sums = dtokens_;
    if (!accumulate) std::fill(sums.begin(), sums.end(), 0.0F);
    const auto C = static_cast<size_t>(shape_.features);
    for (size_t c = 0; c < C; ++c) {
      float group = 0.0F, total = 0.0F;
      for (size_t place = 0; place < order.size(); ++place) {
        const int32_t id = ids_[order[place]];
        group += shape_.scale * dy_[order[place] * C + c];
        const bool goes_on = place + 1 < order.size() && ids_[order[place + 1]] == id;
        if (goes_on && (place + 1) % kEmbeddingGroup != 0) continue;
        total += std::exchange(group, 0.0F);
        if (!goes_on) sums[static_cast<size_t>(id) * C + c] += std::exchange(total, 0.0F);
      }
    }
    return ToDouble(sums);
  }

  const DType type_ = std::get<0>(GetParam());
  const EmbeddingShape shape_ = std::get<1>(GetParam());
  const int64_t count_ = shape_.rows * shape_.positions;
  const std::vector<int32_t> ids_ = RandomLabels(count_, shape_.vocabulary, 1);
  const std::vector<float> tokens_ =
      RoundedTo(type_, RandomNormal(shape_.vocabulary* shape_.features, 2));
  const std::vector<float> positions_ =
      shape_.has_positions ? RoundedTo(type_, RandomNormal(shape_.positions* shape_.features, 3))
                           : std::vector<float>();
  const std::vector<float> dy_ = RoundedTo(type_, RandomNormal(count_* shape_.features, 4));
  const std::vector<float> dtokens_ = RandomNormal(shape_.vocabulary * shape_.features, 5);
};

// Exact except for the rounding of a sum and that to the type.
TEST_P(CudaEmbedding, ForwardIsTheReferenceRounded) {
  const Vector sums =
      reference::EmbeddingForward(shape_, ids_, ToDouble(tokens_), ToDouble(positions_));
  const Vector expected = ToDouble(RoundedTo(type_, std::vector<float>(sums.begin(), sums.end())));
  EXPECT_EQ(Forward(), expected);
  EXPECT_EQ(Forward(/*offset=*/1), expected);
}

TEST_P(CudaEmbedding, BackwardOverwritesWithTheSums) {
  EXPECT_EQ(Backward(/*accumulate=*/false), Sums(false));
  EXPECT_EQ(Backward(/*accumulate=*/false, /*offset=*/1), Sums(false));
}

TEST_P(CudaEmbedding, BackwardAddsToWhatIsThere) {
  EXPECT_EQ(Backward(/*accumulate=*/true), Sums(true));
}

// Rows, positions, vocabulary, features: several warps of ids and of features, vectors and not;
// ids whose rows fill several groups; several tiles of ids; vocabularies of several digits.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaEmbedding,
    ::testing::Combine(
        ::testing::ValuesIn(kActivationTypes),
        ::testing::Values(EmbeddingShape{1, 1, 1, 1, true}, EmbeddingShape{3, 5, 4, 7, true},
                          EmbeddingShape{4, 25, 9, 64, true}, EmbeddingShape{1, 70, 200, 8},
                          EmbeddingShape{2, 17, 3, 2104}, EmbeddingShape{2, 33, 40, 129, true},
                          EmbeddingShape{5, 64, 2, 8}, EmbeddingShape{3, 700, 300, 4},
                          EmbeddingShape{2, 1000, 1, 8}, EmbeddingShape{1, 70, 70000, 4},
                          EmbeddingShape{3, 70, 5, 8, false, 0, 4.0F},
                          EmbeddingShape{2, 9, 5, 7, true, 0, 0.5F})),
    [](const ::testing::TestParamInfo<Parameter>& param_info) {
      const EmbeddingShape& shape = std::get<1>(param_info.param);
      return absl::StrCat(NameOf(std::get<0>(param_info.param)), "_", shape.rows, "x",
                          shape.positions, "_", shape.vocabulary, "x", shape.features,
                          shape.scale != 1.0F ? "_scaled" : "");
    });

TEST(CudaEmbeddingSequence, AddsItsOwnRowOfTheTableToEachPosition) {
  for (const int64_t C : {3, 8}) {
    EmulatedGpu gpu;
    const std::vector<float> tokens = RandomNormal(2 * C, 1), positions = RandomNormal(8 * C, 2);
    const Tensor y = gpu.Result(DType::kFloat32, 5 * C);
    ASSERT_EQ(
        LaunchEmbeddingForward(gpu.stream(), ElementType::kFloat32,
                               {.ids_count = 5,
                                .sequence = 8,
                                .first_position = gpu.Upload<int64_t>({5}),
                                .vocabulary = 2,
                                .features = C,
                                .ids = gpu.Integers({0, 1, 1, 0, 1}).i32(),
                                .tokens = gpu.Operand(DType::kFloat32, tokens).data,
                                .position_table = gpu.Operand(DType::kFloat32, positions).data,
                                .y = y.data}),
        cudaSuccess);
    Vector expected;
    for (const int64_t r : {0, 1, 2, 3, 4}) {
      const int64_t id = r == 0 || r == 3 ? 0 : 1;
      for (int64_t c = 0; c < C; ++c) {
        const float token = tokens[static_cast<size_t>(id * C + c)];
        expected.push_back(r < 3 ? token + positions[static_cast<size_t>((5 + r) * C + c)] : token);
      }
    }
    EXPECT_EQ(gpu.Values(y), expected);
  }
}

TEST(CudaEmbeddingIds, OutsideTheVocabularyGiveNotANumberAndNoGradient) {
  EmulatedGpu gpu;
  const Tensor ids = gpu.Integers({2, 1, -1});
  const Tensor tokens = gpu.Operand(DType::kFloat32, {1, 2, 3, 4});
  const Tensor dy = gpu.Operand(DType::kFloat32, {1, 1, 2, 3, 1, 1});
  const Tensor y = gpu.Result(DType::kFloat32, 6), dtokens = gpu.Result(DType::kFloat32, 4);
  ASSERT_EQ(LaunchEmbeddingForward(gpu.stream(), ElementType::kFloat32,
                                   {.ids_count = 3,
                                    .positions = 3,
                                    .vocabulary = 2,
                                    .features = 2,
                                    .ids = ids.i32(),
                                    .tokens = tokens.data,
                                    .y = y.data}),
            cudaSuccess);
  ASSERT_EQ(LaunchEmbeddingBackward(gpu.stream(), ElementType::kFloat32,
                                    {.ids_count = 3,
                                     .vocabulary = 2,
                                     .features = 2,
                                     .ids = ids.i32(),
                                     .dy = dy.data,
                                     .dtokens = dtokens.f32(),
                                     .workspace = Workspace(gpu, 3, 2)}),
            cudaSuccess);
  const Vector values = gpu.Values(y);
  EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[1]));
  EXPECT_TRUE(std::isnan(values[4]) && std::isnan(values[5]));
  EXPECT_EQ(values[2], 3.0);
  EXPECT_EQ(gpu.Values(dtokens), (Vector{0, 0, 2, 3}));
}

}  // namespace
}  // namespace stagecoach::kernels::embedding_test
