// Operations on a CPU device that computes with bf16: what they give is what the same operation
// gives in fp32 for the same operands, which its own test holds against exact numbers, once
// rounded.
#include "kernels/bfloat16.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/head.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/precision.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::bfloat16_test {
namespace {

using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StoredBound;
using ::stagecoach::testing::TestDevice;

// A device of either precision that gives the same operands, which are numbers of bfloat16.
class Place {
 public:
  explicit Place(Precision precision, int threads = 1) : device(threads, precision) {}

  template <typename Shape>
  std::unique_ptr<typename Shape::Op> Create(const Shape& shape) {
    auto op = device.ops().Create(shape);
    EXPECT_OK(op);
    return *std::move(op);
  }
  DType type() { return device.device().activation_type(); }
  // Of eighths up to 4 or so, whose sums of two are numbers of bfloat16 too.
  Tensor Numbers(const Shape& shape, uint64_t stream) {
    std::vector<float> values = RandomNormal(shape.elements(), stream);
    for (float& value : values) value = std::round(8.0F * value) / 8.0F;
    return device.Operand(shape, values, type());
  }
  Tensor Result(const Shape& shape) { return device.Result(shape, type()); }
  Tensor Floats(const Shape& shape) { return device.Result(shape); }
  void Run(const std::function<absl::Status(Stream&)>& work) { EXPECT_OK(device.Run(work)); }

  TestDevice device;
};

// Runs an operation in a place and returns what it gave. Of `roundings` to bfloat16 the last is
// that of the result itself, where that is not float32. The measure of what is before it, and of a
// sum's error in float32, is the largest element of the tensor.
using Operation = std::function<std::vector<Tensor>(Place& place)>;

void ExpectRounded(int roundings, const Operation& operation) {
  Place exact(Precision::kFloat32), rounded(Precision::kBfloat16),
      threaded(Precision::kBfloat16, 3);
  const std::vector<Tensor> expected = operation(exact);
  const std::vector<Tensor> actual = operation(rounded);
  const std::vector<Tensor> with_threads = operation(threaded);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("result ", i));
    const std::vector<double> values = TestDevice::Values(expected[i]);
    double largest = 0.0;
    for (const double value : values) largest = std::max(largest, std::fabs(value));
    EXPECT_GT(largest, 0.0);
    const double before = largest * ((roundings - 1) * PrecisionOf(DType::kBfloat16).unit_roundoff +
                                     stagecoach::testing::Gamma(2048));
    std::vector<double> bounds;
    for (const double value : values) {
      bounds.push_back(StoredBound(value, before, actual[i].dtype));
    }
    EXPECT_THAT(TestDevice::Values(actual[i]), CloseTo(values, bounds));
    EXPECT_EQ(BytesOf(with_threads[i]), BytesOf(actual[i])) << "three threads";
  }
}

class Bfloat16OnCpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(Precision::kBfloat16);
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
};

TEST_F(Bfloat16OnCpu, Attention) {
  for (const float rotary_base : {0.0F, 10000.0F}) {
    SCOPED_TRACE(rotary_base);
    // y is rounded, and read by backward.
    ExpectRounded(3, [&](Place& place) {
      const auto op = place.Create(AttentionShape{.samples = 2,
                                                  .positions = 150,
                                                  .heads = 4,
                                                  .kv_heads = 2,
                                                  .head_size = 16,
                                                  .rotary_base = rotary_base});
      std::byte* const workspace = place.device.Workspace(op->workspace_bytes());
      const Shape inputs{2, 150, 128}, outputs{2, 150, 64};
      const Tensor qkv = place.Numbers(inputs, 1), dy = place.Numbers(outputs, 2);
      const Tensor y = place.Result(outputs), dqkv = place.Result(inputs);
      const Tensor statistics = place.Floats({2, 4, 150});
      place.Run([&](Stream& stream) {
        EXPECT_OK(op->Forward(stream, qkv, statistics, y, workspace));
        return op->BackwardInput(stream, dy, qkv, y, statistics, dqkv, workspace);
      });
      return std::vector<Tensor>{y, statistics, dqkv};
    });
    ExpectRounded(1, [&](Place& place) {
      const auto op = place.Create(CachedAttentionShape{.rows = 9,
                                                        .positions = 12,
                                                        .heads = 4,
                                                        .kv_heads = 2,
                                                        .head_size = 16,
                                                        .rotary_base = rotary_base});
      const Tensor qkv = place.Numbers({9, 128}, 1), y = place.Result({9, 64});
      std::byte* const cache = place.device.Workspace(op->cache_bytes());
      std::byte* const workspace = place.device.Workspace(op->workspace_bytes());
      const int64_t first = 0;
      place.Run(
          [&](Stream& stream) { return op->Forward(stream, &first, qkv, cache, y, workspace); });
      return std::vector<Tensor>{y};
    });
  }
}

TEST_F(Bfloat16OnCpu, Head) {
  // Gradients of logits are rounded before they are multiplied.
  ExpectRounded(2, [&](Place& place) {
    const auto op = place.Create(HeadShape{.rows = 130, .features = 400, .classes = 600});
    std::byte* const workspace = place.device.Workspace(op->workspace_bytes());
    const Shape inputs{130, 400}, weights{600, 400};
    std::vector<float> small = RandomNormal(weights.elements(), 2);
    for (float& value : small) value = FromBfloat16(ToBfloat16(value / 16.0F));
    const Tensor x = place.Numbers(inputs, 1),
                 w = place.device.Operand(weights, small, place.type());
    const Tensor labels = place.device.Labels(RandomLabels(130, 600, 3));
    const Tensor logits = place.Result({130, 600}), dx = place.Result(inputs),
                 dw = place.Floats(weights), result = place.device.Result({2}, DType::kFloat64);
    const LossTerms terms = {129, 0.125F};
    place.Run([&](Stream& stream) {
      EXPECT_OK(op->Forward(stream, x, w, labels, &terms, logits, result, workspace));
      return op->Backward(stream, x, w, labels, &terms, result, dx, dw, false, workspace);
    });
    return std::vector<Tensor>{logits, result, dx, dw};
  });
}

TEST_F(Bfloat16OnCpu, Embedding) {
  ExpectRounded(1, [](Place& place) {
    const auto op = place.Create(EmbeddingShape{
        .rows = 3, .positions = 5, .vocabulary = 11, .features = 130, .has_positions = true});
    const Tensor ids = place.device.Labels(RandomLabels(15, 11, 1));
    const Tensor tokens = place.Numbers({11, 130}, 2), positions = place.Numbers({5, 130}, 3),
                 dy = place.Numbers({3, 5, 130}, 4), y = place.Result({3, 5, 130});
    const Tensor dtokens = place.Floats({11, 130}), dpositions = place.Floats({5, 130});
    place.Run([&](Stream& stream) {
      EXPECT_OK(op->Forward(stream, ids, tokens, positions, nullptr, y));
      return op->BackwardWeight(stream, ids, dy, dtokens, dpositions, false, nullptr);
    });
    return std::vector<Tensor>{y, dtokens, dpositions};
  });
}

}  // namespace
}  // namespace stagecoach::kernels::bfloat16_test
