#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention_bounds.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::attention_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;
using ::testing::HasSubstr;

// y and the statistics are the exact ones, rounded: backward is tested on operands of its own.
struct Problem {
  // qkv is normal with the given deviation.
  explicit Problem(const AttentionShape& shape_in, float deviation = 1.0F) : shape(shape_in) {
    const int64_t rows = shape.samples * shape.positions;
    qkv = RandomNormal(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_size, 1);
    for (float& value : qkv) value *= deviation;
    dy = RandomNormal(rows * shape.heads * shape.head_size, 2);
    exact = reference::AttentionForward(shape, ToDouble(qkv));
    y.assign(exact.y.begin(), exact.y.end());
    statistics.assign(exact.statistics.begin(), exact.statistics.end());
  }

  AttentionShape shape;
  std::vector<float> qkv, dy, y, statistics;
  reference::AttentionOutput exact;
};

// A problem on a device. The outputs of an operation hold not-a-number before it, and so does the
// workspace before the first.
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1) : problem_(problem), device_(threads) {
    auto op = device_.ops().Create(problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
    workspace_ = device_.Workspace(op_->workspace_bytes());
  }

  struct ForwardResult {
    Tensor statistics, y;
  };
  ForwardResult Forward() { return Forward(problem_.qkv); }
  ForwardResult Forward(const std::vector<float>& qkv) {
    const Tensor statistics = device_.Result(Statistics());
    const Tensor y = device_.Result(Outputs());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(stream, device_.Operand(Inputs(), qkv), statistics, y, workspace_);
    }));
    return {statistics, y};
  }

  Tensor BackwardInput() {
    const Tensor dqkv = device_.Result(Inputs());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardInput(
          stream, device_.Operand(Outputs(), problem_.dy), device_.Operand(Inputs(), problem_.qkv),
          device_.Operand(Outputs(), problem_.y),
          device_.Operand(Statistics(), problem_.statistics), dqkv, workspace_);
    }));
    return dqkv;
  }

 private:
  Shape Inputs() const {
    const AttentionShape& shape = problem_.shape;
    return {shape.samples, shape.positions, (shape.heads + 2 * shape.kv_heads) * shape.head_size};
  }
  Shape Outputs() const {
    const AttentionShape& shape = problem_.shape;
    return {shape.samples, shape.positions, shape.heads * shape.head_size};
  }
  Shape Statistics() const {
    return {problem_.shape.samples, problem_.shape.heads, problem_.shape.positions};
  }

  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<AttentionOp> op_;
  std::byte* workspace_ = nullptr;
};

void ExpectForwardMatchesReference(const Problem& problem) {
  OnDevice device(problem);
  const auto actual = device.Forward();
  const auto bounds = BoundsOfAttention(problem.shape, ToDouble(problem.qkv), problem.exact);
  EXPECT_THAT(TestDevice::Values(actual.statistics),
              CloseTo(problem.exact.statistics, bounds.statistics));
  EXPECT_THAT(TestDevice::Values(actual.y), CloseTo(problem.exact.y, bounds.y));
}

void ExpectBackwardInputMatchesReference(const Problem& problem) {
  const Vector dy = ToDouble(problem.dy), qkv = ToDouble(problem.qkv);
  EXPECT_THAT(TestDevice::Values(OnDevice(problem).BackwardInput()),
              CloseTo(reference::AttentionBackwardInput(problem.shape, dy, qkv),
                      BoundsOfAttentionGradient(problem.shape, dy, qkv, problem.exact)));
}

class CpuAttention : public ::testing::TestWithParam<AttentionShape> {
 protected:
  const Problem problem_{GetParam()};
};

TEST_P(CpuAttention, ForwardMatchesReference) { ExpectForwardMatchesReference(problem_); }

TEST_P(CpuAttention, BackwardInputMatchesReference) {
  ExpectBackwardInputMatchesReference(problem_);
}

std::string CaseName(const ::testing::TestParamInfo<AttentionShape>& info) {
  const AttentionShape& shape = info.param;
  return absl::StrCat(shape.samples, "x", shape.positions, "_", shape.heads, "of", shape.kv_heads,
                      "x", shape.head_size, shape.rotary_base > 0.0F ? "_rotary" : "");
}

// One position, one head, a head of one number; heads with keys of their own, in groups, and one
// group of all; positions that fill tiles, and do not; heads of odd sizes, and of whole vectors.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuAttention,
    ::testing::Values(AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 1, 3, 3, 4, 10000.0F},
                      AttentionShape{2, 5, 4, 2, 6, 10000.0F}, AttentionShape{3, 17, 2, 2, 3},
                      AttentionShape{1, 64, 2, 1, 64}, AttentionShape{3, 65, 3, 1, 10, 100.0F},
                      AttentionShape{1, 100, 4, 4, 20}, AttentionShape{2, 130, 6, 2, 72, 10000.0F},
                      AttentionShape{1, 200, 2, 2, 33}, AttentionShape{1, 256, 2, 2, 64},
                      AttentionShape{1, 128, 2, 1, 128, 10000.0F}, AttentionShape{1, 300, 1, 1, 8}),
    CaseName);

// Scores of several hundred: their exponentials exceed what a float holds.
class CpuAttentionOfLargeScores : public ::testing::Test {
 protected:
  const Problem problem_{
      {.samples = 1, .positions = 150, .heads = 2, .kv_heads = 1, .head_size = 16},
      /*deviation=*/16.0F};
};

TEST_F(CpuAttentionOfLargeScores, ForwardMatchesReference) {
  ASSERT_GT(*std::max_element(problem_.statistics.begin(), problem_.statistics.end()), 500.0F);
  ExpectForwardMatchesReference(problem_);
}

TEST_F(CpuAttentionOfLargeScores, BackwardInputMatchesReference) {
  ExpectBackwardInputMatchesReference(problem_);
}

TEST(CpuAttentionForward, APositionSeesNoLaterOne) {
  const AttentionShape shape{.positions = 90, .heads = 2, .kv_heads = 2, .head_size = 4};
  const Problem problem(shape);
  OnDevice device(problem);
  constexpr int64_t kRow = 24, kOutput = 8;
  const Vector before = TestDevice::Values(device.Forward().y);
  for (const int64_t changed : {1, 15, 16, 40, 63, 64, 80, 89}) {
    std::vector<float> qkv = problem.qkv;
    for (int64_t i = changed * kRow; i < shape.positions * kRow; ++i) {
      qkv[static_cast<size_t>(i)] = 100.0F;
    }
    const Vector after = TestDevice::Values(device.Forward(qkv).y);
    const auto first = static_cast<size_t>(changed * kOutput);
    EXPECT_EQ(absl::MakeConstSpan(after).first(first), absl::MakeConstSpan(before).first(first));
    EXPECT_NE(after[first], before[first]) << changed;
  }
}

TEST(CpuAttentionForward, NotANumberStaysOne) {
  const Problem problem({.positions = 40, .heads = 1, .kv_heads = 1, .head_size = 4});
  std::vector<float> qkv = problem.qkv;
  qkv[360] = std::numeric_limits<float>::quiet_NaN();  // of the query at position 30
  const Vector y = TestDevice::Values(OnDevice(problem).Forward(qkv).y);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 4 == 30) << i;
}

// Positions of several tiles and several heads, so that the threads share the work.
TEST(CpuAttentionThreads, AnyNumberGivesTheSameBits) {
  const Problem problem({.samples = 2,
                         .positions = 150,
                         .heads = 6,
                         .kv_heads = 3,
                         .head_size = 24,
                         .rotary_base = 10000.0F});
  OnDevice one(problem, 1);
  const auto forward = one.Forward();
  const Tensor dqkv = one.BackwardInput();
  for (int threads : {2, 3}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    OnDevice several(problem, threads);
    const auto [statistics, y] = several.Forward();
    EXPECT_EQ(BytesOf(statistics), BytesOf(forward.statistics));
    EXPECT_EQ(BytesOf(y), BytesOf(forward.y));
    EXPECT_EQ(BytesOf(several.BackwardInput()), BytesOf(dqkv));
  }
}

TEST(CpuAttentionWorkspace, DoesNotGrowWithTheSquareOfThePositions) {
  TestDevice device;
  const auto bytes = [&](int64_t positions) {
    const auto op = device.ops().Create(
        AttentionShape{.positions = positions, .heads = 2, .kv_heads = 2, .head_size = 64});
    EXPECT_OK(op);
    return (*op)->workspace_bytes();
  };
  EXPECT_GT(bytes(1024), 0);
  EXPECT_LE(bytes(65536), 64 * bytes(1024));
}

struct Refusal {
  AttentionShape shape;
  std::string says;
};
class CpuAttentionRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(CpuAttentionRefusal, IsAnInvalidArgument) {
  TestDevice device;
  EXPECT_THAT(device.ops().Create(GetParam().shape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().says)));
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kLarge = std::numeric_limits<int32_t>::max();
INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuAttentionRefusal,
    ::testing::Values(
        Refusal{{.samples = 0}, "0 samples"}, Refusal{{.positions = 0}, "0 positions"},
        Refusal{{.heads = 0}, "0 heads"}, Refusal{{.kv_heads = 0}, "0 kv heads"},
        Refusal{{.head_size = 0}, "head size 0"}, Refusal{{.samples = -1}, "-1 samples"},
        Refusal{{.positions = kHuge}, "positions"},
        Refusal{{.samples = kLarge, .positions = kLarge}, "positions"},
        Refusal{{.heads = kLarge, .head_size = kLarge}, "head size"},
        Refusal{{.positions = 1 << 29, .head_size = 8}, "head size 8"},
        Refusal{{.heads = kHuge}, "heads"},
        Refusal{{.heads = 6, .kv_heads = 4}, "4 kv heads do not divide 6 heads"},
        Refusal{{.heads = 2, .kv_heads = 4}, "4 kv heads do not divide 2 heads"},
        Refusal{{.head_size = 3, .rotary_base = 10.0F}, "even, not 3"},
        Refusal{{.head_size = 4, .rotary_base = -1.0F}, "not -1"},
        Refusal{{.head_size = 4, .rotary_base = std::numeric_limits<float>::infinity()}, "not inf"},
        Refusal{{.head_size = 4, .rotary_base = std::numeric_limits<float>::quiet_NaN()},
                "not nan"}));

}  // namespace
}  // namespace stagecoach::kernels::attention_test
