#include "kernels/ops/ops.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/head.h"
#include "kernels/ops/linear.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

// The path from an operation to its kernels: each argument arrives where it belongs. The values
// make results exact. The neighboring tests cover what kernels do with all shapes.
namespace stagecoach::kernels::ops_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::RandomNormal;
using testing::StatusIs;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

class CudaOpsTest : public CudaBackendTest {
 protected:
  void SetUp() override {
    CudaBackendTest::SetUp();
    device_ = CreateDevice();
  }
  void TearDown() override {
    buffers_.clear();
    device_.reset();
    CudaBackendTest::TearDown();
  }

  Ops& ops() { return device_->ops(); }

  // Memory that lives as long as the test.
  Tensor Result(DType type, const Shape& shape) {
    Tensor tensor{nullptr, type, shape};
    auto buffer = device_->Allocate(tensor.bytes());
    STAGECOACH_CHECK_OK(buffer);
    tensor.data = buffer->data();
    buffers_.push_back(*std::move(buffer));
    return tensor;
  }
  template <typename T>
  Tensor Operand(DType type, const Shape& shape, std::vector<T> values) {
    const Tensor tensor = Result(type, shape);
    auto staging = device_->AllocateHost(tensor.bytes());
    STAGECOACH_CHECK_OK(staging);
    std::memcpy(staging->data(), values.data(), static_cast<size_t>(tensor.bytes()));
    Perform([&](Stream& stream) {
      return stream.CopyFromHost(tensor.data, staging->data(), tensor.bytes());
    });
    return tensor;
  }
  Tensor Floats(const Shape& shape, const std::vector<float>& values) {
    return Operand(DType::kFloat32, shape, values);
  }

  void Perform(absl::FunctionRef<absl::Status(Stream&)> work) {
    EXPECT_OK(RunJob(*device_, work));
    EXPECT_OK(FinishStream(*device_));
  }

  template <typename T>
  std::vector<T> Values(const Tensor& tensor) {
    auto staging = device_->AllocateHost(tensor.bytes());
    STAGECOACH_CHECK_OK(staging);
    Perform([&](Stream& stream) {
      return stream.CopyToHost(staging->data(), tensor.data, tensor.bytes());
    });
    std::vector<T> values(static_cast<size_t>(tensor.elements()));
    std::memcpy(values.data(), staging->data(), static_cast<size_t>(tensor.bytes()));
    return values;
  }

  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
};

// A sample of two ids in each of two rows; the words 1 and 2.
TEST_F(CudaOpsTest, Embedding) {
  ASSERT_OK_AND_ASSIGN(
      const auto op,
      ops().Create(EmbeddingShape{
          .rows = 2, .positions = 2, .vocabulary = 3, .features = 1, .has_positions = true}));
  const Tensor ids = Operand<int32_t>(DType::kInt32, {2, 2}, {1, 2, 1, 1});
  const Tensor tokens = Floats({3, 1}, {1, 2, 3}), positions = Floats({2, 1}, {10, 20});
  const Tensor y = Result(DType::kFloat32, {2, 2, 1}), dy = Floats({2, 2, 1}, {1, 2, 4, 8});
  const Tensor dtokens = Result(DType::kFloat32, {3, 1});
  const Tensor dpositions = Result(DType::kFloat32, {2, 1});
  const Tensor workspace = Result(DType::kFloat32, {(op->workspace_bytes() + 3) / 4 + 1});
  const auto backward = [&](bool accumulate) {
    Perform([&](Stream& stream) {
      return op->BackwardWeight(stream, ids, dy, dtokens, dpositions, accumulate,
                                static_cast<std::byte*>(workspace.data));
    });
  };
  Perform([&](Stream& stream) { return op->Forward(stream, ids, tokens, positions, nullptr, y); });
  EXPECT_THAT(Values<float>(y), ElementsAre(12, 23, 12, 22));
  backward(/*accumulate=*/false);
  EXPECT_THAT(Values<float>(dtokens), ElementsAre(0, 13, 2));
  EXPECT_THAT(Values<float>(dpositions), ElementsAre(5, 10));
  backward(/*accumulate=*/true);
  EXPECT_THAT(Values<float>(dtokens), ElementsAre(0, 26, 4));
  EXPECT_THAT(Values<float>(dpositions), ElementsAre(10, 20));
}

TEST_F(CudaOpsTest, EmbeddingWithoutPositionsIgnoresThem) {
  ASSERT_OK_AND_ASSIGN(const auto op, ops().Create(EmbeddingShape{.vocabulary = 2}));
  const Tensor ids = Operand<int32_t>(DType::kInt32, {1, 1}, {1});
  const Tensor tokens = Floats({2, 1}, {1, 2}), positions = Floats({1, 1}, {10});
  const Tensor y = Result(DType::kFloat32, {1, 1, 1});
  Perform([&](Stream& stream) { return op->Forward(stream, ids, tokens, positions, nullptr, y); });
  EXPECT_THAT(Values<float>(y), ElementsAre(2));
}

TEST_F(CudaOpsTest, EmbeddingScalesTokens) {
  ASSERT_OK_AND_ASSIGN(const auto op, ops().Create(EmbeddingShape{.vocabulary = 2, .scale = 3.0F}));
  const Tensor ids = Operand<int32_t>(DType::kInt32, {1, 1}, {1});
  const Tensor tokens = Floats({2, 1}, {1, 2}), y = Result(DType::kFloat32, {1, 1, 1});
  Perform([&](Stream& stream) { return op->Forward(stream, ids, tokens, {}, nullptr, y); });
  EXPECT_THAT(Values<float>(y), ElementsAre(6));
}

TEST_F(CudaOpsTest, EmbeddingRefusesExtentsOutOfRange) {
  for (const EmbeddingShape& shape :
       {EmbeddingShape{.rows = 0}, EmbeddingShape{.positions = -1}, EmbeddingShape{.vocabulary = 0},
        EmbeddingShape{.features = kHuge}, EmbeddingShape{.rows = kHuge},
        EmbeddingShape{.scale = -1.0F}, EmbeddingShape{.rows = 1 << 20, .positions = 1 << 20},
        EmbeddingShape{.positions = 1 << 20, .features = 1 << 20}}) {
    EXPECT_THAT(ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

// If a block has too little shared memory for a whole head, the kernels work on slices of it.
TEST_F(CudaOpsTest, AttentionNeedsNoMoreSharedMemoryThanAnyGpuHas) {
  const AttentionShape shape{.positions = 5, .head_size = 80, .rotary_base = 100.0F};
  const auto results = [&] {
    const auto op = ops().Create(shape).value();
    const Tensor qkv = Floats({1, 5, 240}, RandomNormal(1200, 1));
    const Tensor dy = Floats({1, 5, 80}, RandomNormal(400, 2));
    const Tensor statistics = Result(DType::kFloat32, {1, 1, 5});
    const Tensor y = Result(DType::kFloat32, {1, 5, 80});
    const Tensor dqkv = Result(DType::kFloat32, {1, 5, 240});
    const Tensor workspace = Result(DType::kUint8, {op->workspace_bytes()});
    auto* const scratch = static_cast<std::byte*>(workspace.data);
    Perform([&](Stream& stream) {
      return op->Forward(stream, qkv, /*documents=*/{}, statistics, y, scratch);
    });
    Perform([&](Stream& stream) {
      return op->BackwardInput(stream, dy, qkv, /*documents=*/{}, y, statistics, dqkv, scratch);
    });
    std::vector<float> values = Values<float>(y);
    for (const float value : Values<float>(dqkv)) values.push_back(value);
    return values;
  };
  const std::vector<float> expected = results();
  buffers_.clear();
  device_.reset();
  StartMachine({.shared_bytes = 99 << 10});
  device_ = CreateDevice();
  EXPECT_THAT(results(), Pointwise(FloatNear(1e-4F), expected));
}

// Other kernels would produce other bits.
TEST_F(CudaOpsTest, AttentionOnTensorCoresRefusesAddressesThatAreNotAligned) {
  device_ = Backend().CreateDevice({.precision = Precision::kBfloat16}).value();
  const auto op = ops().Create(AttentionShape{.head_size = 64}).value();
  Tensor qkv = Result(DType::kBfloat16, {1, 1, 200});
  qkv.data = qkv.bf16() + 1;
  const Tensor statistics = Result(DType::kFloat32, {1, 1, 1});
  const Tensor y = Result(DType::kBfloat16, {1, 1, 64});
  EXPECT_THAT(RunJob(*device_,
                     [&](Stream& stream) {
                       return op->Forward(stream, qkv, /*documents=*/{}, statistics, y,
                                          /*workspace=*/nullptr);
                     }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiples of 16")));
}

TEST_F(CudaOpsTest, WhatHasNoKernelsIsRefused) {
  for (const int64_t head_size : {130, 264}) {
    EXPECT_THAT(ops().Create(CachedAttentionShape{.head_size = head_size}),
                StatusIs(absl::StatusCode::kUnimplemented,
                         HasSubstr("attention with a cache has no CUDA kernel for")));
  }
  const auto refuses_sequences = [this](const auto& shape) {
    EXPECT_THAT(ops().Create(shape),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("has no CUDA kernel for")));
  };
  refuses_sequences(LinearShape{.independent_rows = true});
  refuses_sequences(HeadShape{.independent_rows = true});
  refuses_sequences(CachedAttentionShape{.head_size = 64, .sequences = 2});
  refuses_sequences(CachedAttentionShape{.head_size = 64, .rows_are_sequences = true});
}

}  // namespace
}  // namespace stagecoach::kernels::ops_test
