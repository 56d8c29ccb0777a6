#include "kernels/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/attention_bounds.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::cached_attention_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

// A sequence that comes `rows` positions at a time: what attention of all of it at once is to give.
struct SequenceCase {
  CachedAttentionShape shape;
  float deviation = 1.0F;

  AttentionShape whole() const {
    return {.positions = shape.positions,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_size = shape.head_size,
            .rotary_base = shape.rotary_base};
  }
  int64_t inputs() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_size; }
  int64_t outputs() const { return shape.heads * shape.head_size; }
  std::vector<float> Qkv() const {
    std::vector<float> qkv = RandomNormal(shape.positions * inputs(), 1);
    for (float& value : qkv) value *= deviation;
    return qkv;
  }
};

// y of all positions, and of those beyond the last that the last call has.
Vector OneAfterTheOther(const SequenceCase& test, const std::vector<float>& qkv, int threads) {
  TestDevice device(threads);
  const CachedAttentionShape& shape = test.shape;
  const auto op = device.ops().Create(shape).value();
  std::byte* const cache = device.Workspace(op->cache_bytes());
  std::byte* const workspace = device.Workspace(op->workspace_bytes());
  Vector all;
  for (int64_t first = 0; first < shape.positions; first += shape.rows) {
    // Padding is not a number.
    std::vector<float> x(static_cast<size_t>(shape.rows * test.inputs()),
                         std::numeric_limits<float>::quiet_NaN());
    const int64_t rows = std::min(shape.rows, shape.positions - first);
    std::copy_n(qkv.begin() + first * test.inputs(), rows * test.inputs(), x.begin());
    const Tensor y = device.Result(Shape{shape.rows, test.outputs()});
    EXPECT_OK(device.Run([&](Stream& stream) {
      return op->Forward(stream, &first, device.Operand(Shape{shape.rows, test.inputs()}, x), cache,
                         y, workspace);
    }));
    const Vector values = TestDevice::Values(y);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class CpuCachedAttention : public ::testing::TestWithParam<SequenceCase> {};

TEST_P(CpuCachedAttention, GivesWhatAttentionOfTheWholeSequenceDoes) {
  const std::vector<float> qkv = GetParam().Qkv();
  const AttentionShape whole = GetParam().whole();
  const auto exact = reference::AttentionForward(whole, ToDouble(qkv));
  Vector y = OneAfterTheOther(GetParam(), qkv, 1);
  for (size_t i = exact.y.size(); i < y.size(); ++i) EXPECT_EQ(y[i], 0.0) << "padding";
  y.resize(exact.y.size());
  EXPECT_THAT(y, CloseTo(exact.y, BoundsOfAttention(whole, ToDouble(qkv), exact).y));
}

TEST_P(CpuCachedAttention, HasTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> qkv = GetParam().Qkv();
  EXPECT_EQ(OneAfterTheOther(GetParam(), qkv, 3), OneAfterTheOther(GetParam(), qkv, 1));
}

INSTANTIATE_TEST_SUITE_P(
    Sequences, CpuCachedAttention,
    ::testing::Values(SequenceCase{{1, 1, 1, 1, 1}}, SequenceCase{{1, 5, 4, 2, 6, 10000.0F}},
                      SequenceCase{{3, 17, 2, 2, 3}}, SequenceCase{{1, 70, 6, 2, 64, 10000.0F}},
                      SequenceCase{{4, 33, 3, 1, 10, 100.0F}}, SequenceCase{{8, 6, 2, 1, 40}},
                      // Scores of several hundred: their exponentials exceed what a float holds.
                      SequenceCase{{1, 40, 2, 1, 16}, 16.0F}),
    [](const auto& test) {
      const CachedAttentionShape& shape = test.param.shape;
      return absl::StrCat(test.index, "_", shape.rows, "of", shape.positions, "_", shape.heads,
                          "of", shape.kv_heads, "x", shape.head_size);
    });

TEST(CpuCachedAttention, RefusesWhatAttentionDoes) {
  TestDevice device;
  for (const CachedAttentionShape& shape :
       {CachedAttentionShape{.rows = 0}, CachedAttentionShape{.positions = 0},
        CachedAttentionShape{.heads = 3, .kv_heads = 2, .head_size = 2},
        CachedAttentionShape{.head_size = 3, .rotary_base = 10.0F},
        CachedAttentionShape{.head_size = 2, .rotary_base = -1.0F}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::cached_attention_test
