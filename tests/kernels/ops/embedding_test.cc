#include "kernels/ops/embedding.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/precision.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::embedding_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasOnCpu;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

struct Problem {
  explicit Problem(const EmbeddingShape& shape_in) : shape(shape_in) {
    const int64_t n = shape.rows * shape.positions;
    ids = RandomLabels(n, shape.vocabulary, 1);
    tokens = RandomNormal(shape.vocabulary * shape.features, 2);
    dy = RandomNormal(n * shape.features, 3);
    dtokens = RandomNormal(shape.vocabulary * shape.features, 4);
    if (!shape.has_positions) return;
    positions = RandomNormal(shape.table_positions() * shape.features, 5);
    dpositions = RandomNormal(shape.positions * shape.features, 6);
  }

  EmbeddingShape shape;
  std::vector<CachedRow> rows;
  std::vector<int32_t> ids;
  std::vector<float> tokens, positions, dy, dtokens, dpositions;  // the last two: before the call
};

// Gradients of a problem on a device. Results hold NaN before the call.
struct Gradients {
  Tensor tokens, positions;
};
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1,
                    Precision precision = Precision::kFloat32)
      : problem_(problem), device_(threads, precision) {
    auto op = device_.ops().Create(problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  Tensor Forward() {
    const EmbeddingShape& shape = problem_.shape;
    const Tensor y = device_.Result(Shape{shape.rows, shape.positions, shape.features}, type());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(
          stream, device_.Labels(problem_.ids), device_.Operand(table(), problem_.tokens, type()),
          shape.has_positions ? device_.Operand(sample(), problem_.positions, type()) : Tensor{},
          shape.sequence > 0 ? problem_.rows.data() : nullptr, y);
    }));
    return y;
  }

  Gradients Backward(bool accumulate) {
    const EmbeddingShape& shape = problem_.shape;
    Gradients gradients = {
        accumulate ? device_.Operand(table(), problem_.dtokens) : device_.Result(table()), {}};
    if (shape.has_positions) {
      gradients.positions =
          accumulate ? device_.Operand(sample(), problem_.dpositions) : device_.Result(sample());
    }
    const Tensor dy =
        device_.Operand(Shape{shape.rows, shape.positions, shape.features}, problem_.dy, type());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, device_.Labels(problem_.ids), dy, gradients.tokens,
                                 gradients.positions, accumulate, /*workspace=*/nullptr);
    }));
    return gradients;
  }

 private:
  DType type() { return device_.device().activation_type(); }
  Shape table() const { return {problem_.shape.vocabulary, problem_.shape.features}; }
  Shape sample() const { return {problem_.shape.table_positions(), problem_.shape.features}; }

  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<EmbeddingOp> op_;
};

void ExpectSums(const Tensor& actual, Vector expected, Vector magnitudes,
                const std::vector<float>& before, bool accumulate, int64_t terms) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (accumulate) {
      expected[i] += before[i];
      magnitudes[i] += std::fabs(before[i]);
    }
    magnitudes[i] *= Gamma(terms);
  }
  EXPECT_THAT(TestDevice::Values(actual), CloseTo(expected, magnitudes));
}

class CpuEmbedding : public ::testing::TestWithParam<EmbeddingShape> {
 protected:
  void ExpectGradientsMatchReference(bool accumulate) {
    OnDevice device(problem_, 2);
    const Gradients actual = device.Backward(accumulate);
    const Vector dy = ToDouble(problem_.dy);
    const auto expected = reference::EmbeddingBackward(problem_.shape, problem_.ids, dy);
    const auto magnitudes =
        reference::EmbeddingBackward(problem_.shape, problem_.ids, Magnitudes(dy));
    ExpectSums(actual.tokens, expected.dtokens, magnitudes.dtokens, problem_.dtokens, accumulate,
               static_cast<int64_t>(problem_.ids.size()));
    if (!problem_.shape.has_positions) return;
    ExpectSums(actual.positions, expected.dpositions, magnitudes.dpositions, problem_.dpositions,
               accumulate, problem_.shape.rows);
  }

  const Problem problem_{GetParam()};
};

TEST_P(CpuEmbedding, ForwardMatchesReference) {
  const Vector expected = reference::EmbeddingForward(
      problem_.shape, problem_.ids, ToDouble(problem_.tokens), ToDouble(problem_.positions));
  Vector bounds = Magnitudes(expected);
  const bool is_exact = !problem_.shape.has_positions && problem_.shape.scale == 1.0F;
  for (double& bound : bounds) bound *= is_exact ? 0.0 : Gamma(2);
  EXPECT_THAT(TestDevice::Values(OnDevice(problem_).Forward()), CloseTo(expected, bounds));
}

TEST_P(CpuEmbedding, BackwardOverwritesWithReference) { ExpectGradientsMatchReference(false); }

TEST_P(CpuEmbedding, BackwardAddsReference) { ExpectGradientsMatchReference(true); }

// Sums are in float32, so that the order matters.
TEST_P(CpuEmbedding, BackwardAddsRowsInTheirOrder) {
  const auto C = static_cast<size_t>(problem_.shape.features);
  std::vector<float> dtokens = problem_.dtokens, dpositions = problem_.dpositions;
  for (size_t n = 0; n < problem_.ids.size(); ++n) {
    const size_t t = n % static_cast<size_t>(problem_.shape.positions);
    for (size_t c = 0; c < C; ++c) {
      dtokens[static_cast<size_t>(problem_.ids[n]) * C + c] +=
          problem_.shape.scale * problem_.dy[n * C + c];
      if (problem_.shape.has_positions) dpositions[t * C + c] += problem_.dy[n * C + c];
    }
  }
  for (int threads : {1, 2, 3}) {
    OnDevice device(problem_, threads);
    const Gradients actual = device.Backward(/*accumulate=*/true);
    EXPECT_EQ(TestDevice::Values(actual.tokens), ToDouble(dtokens)) << threads << " threads";
    if (!problem_.shape.has_positions) continue;
    EXPECT_EQ(TestDevice::Values(actual.positions), ToDouble(dpositions)) << threads << " threads";
  }
}

TEST_P(CpuEmbedding, AnyNumberOfThreadsGivesTheSameBits) {
  OnDevice one(problem_), several(problem_, 3);
  EXPECT_EQ(BytesOf(several.Forward()), BytesOf(one.Forward()));
  const Gradients expected = one.Backward(false), actual = several.Backward(false);
  EXPECT_EQ(BytesOf(actual.tokens), BytesOf(expected.tokens));
  if (!problem_.shape.has_positions) return;
  EXPECT_EQ(BytesOf(actual.positions), BytesOf(expected.positions));
}

// Rows, positions, vocabulary, features: repeated and missing ids, around the sizes of tiles.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuEmbedding,
    ::testing::Values(EmbeddingShape{1, 1, 1, 1}, EmbeddingShape{1, 1, 1, 1, true},
                      EmbeddingShape{3, 5, 4, 7, true}, EmbeddingShape{5, 1, 2, 16},
                      EmbeddingShape{1, 33, 1000, 128, true}, EmbeddingShape{2, 17, 3, 129, true},
                      EmbeddingShape{4, 50, 1500, 700}, EmbeddingShape{3, 5, 4, 7, true, 0, 4.0F},
                      EmbeddingShape{2, 17, 3, 129, false, 0, 0.5F}),
    [](const auto& param_info) {
      return absl::StrCat(param_info.param.rows, "x", param_info.param.positions, "_",
                          param_info.param.vocabulary, "x", param_info.param.features,
                          param_info.param.has_positions ? "_positions" : "",
                          param_info.param.scale != 1.0F ? "_scaled" : "");
    });

// That of 640 features is rounded before it multiplies, and the product once more.
TEST(CpuEmbeddingInBfloat16, RoundsTheScale) {
  if (const absl::Status has = HasOnCpu(Precision::kBfloat16); !has.ok()) {
    GTEST_SKIP() << has.message();
  }
  Problem problem({.vocabulary = 1, .features = 4, .scale = std::sqrt(640.0F)});
  problem.tokens = {1.0F, 0.5F, -1.5F, 1.0078125F};
  OnDevice device(problem, 1, Precision::kBfloat16);
  EXPECT_EQ(TestDevice::Values(device.Forward()), (Vector{25.25, 12.625, -38.0, 25.5}));
}

TEST(CpuEmbeddingIds, OutsideTheVocabularyGiveNotANumberAndNoGradient) {
  Problem problem({.rows = 1, .positions = 3, .vocabulary = 2, .features = 2});
  problem.ids = {2, 1, -1};
  problem.dy = {1, 1, 2, 3, 1, 1};
  OnDevice device(problem);
  const Vector y = TestDevice::Values(device.Forward());
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[4]) && std::isnan(y[5]));
  EXPECT_EQ(y[2], problem.tokens[2]);
  EXPECT_EQ(TestDevice::Values(device.Backward(false).tokens), (Vector{0, 0, 2, 3}));
}

TEST(CpuEmbeddingSequence, AddsItsOwnRowOfTheTableToEachPosition) {
  Problem problem(
      {.rows = 5, .vocabulary = 3, .features = 7, .has_positions = true, .sequence = 8});
  const std::vector<int64_t> places = {5, 0, 8, 7, 2};  // one is padding
  for (const int64_t place : places) problem.rows.push_back({.position = place});
  Vector expected;
  for (size_t r = 0; r < 5; ++r) {
    for (size_t c = 0; c < 7; ++c) {
      const float token = problem.tokens[static_cast<size_t>(problem.ids[r]) * 7 + c];
      const auto place = static_cast<size_t>(places[r]);
      expected.push_back(place < 8 ? token + problem.positions[place * 7 + c] : token);
    }
  }
  EXPECT_EQ(TestDevice::Values(OnDevice(problem, 2).Forward()), expected);
}

// Multiples of an eighth up to about 4, whose pairwise sums bfloat16 also represents.
TEST(CpuEmbeddingInBfloat16, GivesTheNumbersOfFloat32WhereThereIsNothingToRound) {
  if (const absl::Status has = HasOnCpu(Precision::kBfloat16); !has.ok()) {
    GTEST_SKIP() << has.message();
  }
  Problem problem(
      {.rows = 3, .positions = 5, .vocabulary = 11, .features = 130, .has_positions = true});
  for (std::vector<float>* const values : {&problem.tokens, &problem.positions, &problem.dy}) {
    for (float& value : *values) value = std::round(8.0F * value) / 8.0F;
  }
  OnDevice exact(problem);
  const Vector y = TestDevice::Values(exact.Forward());
  const Gradients expected = exact.Backward(false);
  for (const int threads : {1, 3}) {
    OnDevice device(problem, threads, Precision::kBfloat16);
    EXPECT_EQ(TestDevice::Values(device.Forward()), y);
    const Gradients actual = device.Backward(false);
    EXPECT_EQ(BytesOf(actual.tokens), BytesOf(expected.tokens));
    EXPECT_EQ(BytesOf(actual.positions), BytesOf(expected.positions));
  }
}

TEST(CpuEmbedding, RefusesShapesOutOfRange) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  TestDevice device;
  for (const EmbeddingShape& shape :
       {EmbeddingShape{.rows = 0}, EmbeddingShape{.positions = 0}, EmbeddingShape{.vocabulary = 0},
        EmbeddingShape{.features = -1}, EmbeddingShape{.rows = kHuge},
        EmbeddingShape{.vocabulary = kHuge}, EmbeddingShape{.rows = 1 << 20, .positions = 1 << 20},
        EmbeddingShape{.positions = 2, .has_positions = true, .sequence = 4},
        EmbeddingShape{.sequence = 4}, EmbeddingShape{.scale = 0.0F},
        EmbeddingShape{.scale = std::numeric_limits<float>::infinity()}}) {
    EXPECT_THAT(device.ops().Create(shape), IsRefused(""));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::embedding_test
