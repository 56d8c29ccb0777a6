#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/optimizer_kernels.h"
#include "kernels/cuda/ops/parameter_chunks.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::optimizer_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::EmulatedGpu;
using testing::Gamma;
using testing::InEveryOrder;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::ToDouble;

// One parameter: a first moment (or momentum), and a second, which is not negative.
struct Parameter {
  explicit Parameter(int64_t elements, uint64_t stream = 0)
      : value(RandomNormal(elements, stream + 1)),
        gradient(RandomNormal(elements, stream + 2)),
        m(RandomNormal(elements, stream + 3)),
        v(RandomNormal(elements, stream + 4)) {
    for (float& second : v) second *= second;
  }

  std::vector<float> value, gradient, m, v;
  bool decays = true;
  bool has_working = true;
  int64_t offset = 0;  // of its tensors, in elements
};

// Parameters in a GPU's memory with the table that describes them.
class OnGpu {
 public:
  OnGpu(EmulatedGpu& gpu, const std::vector<Parameter>& parameters, bool with_v = true)
      : gpu_(gpu) {
    for (const Parameter& parameter : parameters) {
      const auto operand = [&](const std::vector<float>& values) {
        return gpu.Operand(DType::kFloat32, values, parameter.offset);
      };
      const auto elements = static_cast<int64_t>(parameter.value.size());
      tensors_.push_back(
          {.value = operand(parameter.value),
           .working = parameter.has_working
                          ? gpu.Result(DType::kBfloat16, elements, parameter.offset)
                          : Tensor{},
           .gradient = operand(parameter.gradient),
           .states = {operand(parameter.m), with_v ? operand(parameter.v) : Tensor{}},
           .decays = parameter.decays});
    }
    const ParameterChunks cut = CutIntoChunks(tensors_);
    table_ = {.chunks = gpu.Upload<ParameterChunk>(cut.chunks),
              .chunk_count = static_cast<int32_t>(cut.chunks.size()),
              .first_chunk = gpu.Upload<int32_t>(cut.first_chunk),
              .parameter_count = static_cast<int32_t>(parameters.size()),
              .partial_squares =
                  gpu.Result(DType::kFloat64, static_cast<int64_t>(cut.chunks.size())).f64()};
  }

  const ParameterTable& table() const { return table_; }
  const std::vector<ParameterTensors>& tensors() const { return tensors_; }

  // Of each parameter: value, states, working copy (empty if it has none).
  std::vector<Vector> State() const {
    std::vector<Vector> state;
    for (const ParameterTensors& tensors : tensors_) {
      for (const Tensor& tensor :
           {tensors.value, tensors.states[0], tensors.states[1], tensors.working}) {
        state.push_back(tensor.empty() ? Vector{} : gpu_.Values(tensor));
      }
    }
    return state;
  }

 private:
  EmulatedGpu& gpu_;
  std::vector<ParameterTensors> tensors_;
  ParameterTable table_;
};

// Sizes around those of vectors, threads' batches and chunks; with and without what is optional.
std::vector<Parameter> ManyParameters() {
  std::vector<Parameter> parameters;
  for (const int64_t elements : {1, 3, 4, 5, 1000, 2048, 2051, kChunkElements - 1, kChunkElements,
                                 kChunkElements + 1, 2 * kChunkElements + 7}) {
    Parameter& parameter = parameters.emplace_back(elements, parameters.size() * 10);
    parameter.decays = parameters.size() % 2 == 0;
    parameter.has_working = parameters.size() % 3 != 0;
    parameter.offset = parameters.size() % 4 == 3 ? 1 : 0;
  }
  return parameters;
}

// A step as its contract has it; the device is given what follows from it.
AdamWCoefficients CoefficientsOf(const AdamWStep& step) {
  const double t = static_cast<double>(step.step);
  return {.beta1 = step.beta1,
          .beta2 = step.beta2,
          .epsilon = step.epsilon,
          .rate = static_cast<float>(step.learning_rate / (1.0 - std::pow(step.beta1, t))),
          .root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, t))),
          .keep = 1.0F - step.learning_rate * step.weight_decay};
}

Vector Scaled(const std::vector<float>& values, float scale) {
  Vector scaled = ToDouble(values);
  for (double& value : scaled) value *= scale;
  return scaled;
}

void ExpectWorkingIsValueRounded(const Parameter& parameter, const Vector& value,
                                 const Vector& working) {
  const std::vector<float> floats(value.begin(), value.end());
  EXPECT_EQ(working,
            parameter.has_working ? ToDouble(RoundedTo(DType::kBfloat16, floats)) : Vector{});
}

void ExpectAdamWMatches(const std::vector<Parameter>& parameters, const AdamWStep& step,
                        float scale, bool scale_given = true) {
  const auto state = InEveryOrder([&](EmulatedGpu& gpu) {
    const OnGpu on_gpu(gpu, parameters);
    const float* const scale_address =
        scale_given ? gpu.Operand(DType::kFloat32, {scale}).f32() : nullptr;
    EXPECT_EQ(LaunchAdamW(gpu.stream(), on_gpu.table(), CoefficientsOf(step), scale_address),
              cudaSuccess);
    return on_gpu.State();
  });
  const double t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    SCOPED_TRACE(::testing::Message() << "parameter " << p << " of " << parameter.value.size());
    AdamWStep own = step;
    if (!parameter.decays) own.weight_decay = 0.0F;
    reference::AdamWState expected{ToDouble(parameter.value), ToDouble(parameter.m),
                                   ToDouble(parameter.v)};
    const Vector gradient = Scaled(parameter.gradient, scale);
    reference::AdamW(own, gradient, expected);
    Vector value_bound, m_bound, v_bound;
    for (size_t k = 0; k < gradient.size(); ++k) {
      const double m_abs =
          own.beta1 * std::fabs(parameter.m[k]) + (1.0 - own.beta1) * std::fabs(gradient[k]);
      const double p_abs = std::fabs(parameter.value[k]);
      const double denominator = std::sqrt(expected.v[k] / correction2) + own.epsilon;
      m_bound.push_back(Gamma(4) * m_abs);
      v_bound.push_back(Gamma(5) * expected.v[k]);
      // The longest path, through v and the root, has 5 roundings for v, 4 for the root, 4 each for
      // two divisions and 7 for the rest.
      value_bound.push_back(
          Gamma(24) * (p_abs + own.learning_rate *
                                   (m_abs / correction1 / denominator + own.weight_decay * p_abs)));
    }
    EXPECT_THAT(state[4 * p], CloseTo(expected.parameter, value_bound));
    EXPECT_THAT(state[4 * p + 1], CloseTo(expected.m, m_bound));
    EXPECT_THAT(state[4 * p + 2], CloseTo(expected.v, v_bound));
    ExpectWorkingIsValueRounded(parameter, state[4 * p], state[4 * p + 3]);
  }
}

void ExpectSgdMatches(const std::vector<Parameter>& parameters, const SgdStep& step, float scale) {
  const auto state = InEveryOrder([&](EmulatedGpu& gpu) {
    const OnGpu on_gpu(gpu, parameters, /*with_v=*/false);
    EXPECT_EQ(LaunchSgd(gpu.stream(), on_gpu.table(),
                        {.learning_rate = step.learning_rate,
                         .momentum = step.momentum,
                         .weight_decay = step.weight_decay},
                        gpu.Operand(DType::kFloat32, {scale}).f32()),
              cudaSuccess);
    return on_gpu.State();
  });
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    SCOPED_TRACE(::testing::Message() << "parameter " << p << " of " << parameter.value.size());
    SgdStep own = step;
    if (!parameter.decays) own.weight_decay = 0.0F;
    reference::SgdState expected{ToDouble(parameter.value), ToDouble(parameter.m)};
    const Vector gradient = Scaled(parameter.gradient, scale);
    reference::Sgd(own, gradient, expected);
    Vector value_bound, momentum_bound;
    for (size_t k = 0; k < gradient.size(); ++k) {
      const double p_abs = std::fabs(parameter.value[k]);
      const double m_abs = own.momentum * std::fabs(parameter.m[k]) + std::fabs(gradient[k]) +
                           own.weight_decay * p_abs;
      momentum_bound.push_back(Gamma(4) * m_abs);
      value_bound.push_back(Gamma(6) * (p_abs + own.learning_rate * m_abs));
    }
    EXPECT_THAT(state[4 * p], CloseTo(expected.parameter, value_bound));
    EXPECT_THAT(state[4 * p + 1], CloseTo(expected.momentum, momentum_bound));
    ExpectWorkingIsValueRounded(parameter, state[4 * p], state[4 * p + 3]);
  }
}

TEST(CudaAdamW, ManyParametersMatchReference) {
  ExpectAdamWMatches(ManyParameters(), {.learning_rate = 0.01F, .weight_decay = 0.1F, .step = 3},
                     0.25F);
}

class CudaAdamWStep : public ::testing::TestWithParam<AdamWStep> {};

TEST_P(CudaAdamWStep, MatchesReference) { ExpectAdamWMatches({Parameter(101)}, GetParam(), 1.0F); }

// The first step, where the corrections are largest, and one so late that they are gone; every term
// alone.
INSTANTIATE_TEST_SUITE_P(Steps, CudaAdamWStep,
                         ::testing::Values(AdamWStep{.step = 1}, AdamWStep{.step = 2},
                                           AdamWStep{.step = 1000000},
                                           AdamWStep{.beta1 = 0.0F, .beta2 = 0.0F},
                                           AdamWStep{.epsilon = 1.0F},
                                           AdamWStep{.weight_decay = 1.0F}));

TEST(CudaAdamW, WithoutAScaleGradientsCountInFull) {
  ExpectAdamWMatches({Parameter(101)}, {}, 1.0F, /*scale_given=*/false);
}

// As ClipScale gives it for a norm that is not finite.
TEST(CudaOptimizerSteps, WithAScaleThatIsNoNumberChangeNothing) {
  EmulatedGpu gpu;
  const OnGpu on_gpu(gpu, ManyParameters());
  const auto before = on_gpu.State();
  const float* const scale =
      gpu.Operand(DType::kFloat32, {std::numeric_limits<float>::quiet_NaN()}).f32();
  ASSERT_EQ(LaunchAdamW(gpu.stream(), on_gpu.table(), CoefficientsOf({.step = 1}), scale),
            cudaSuccess);
  EXPECT_TRUE(testing::HaveTheSameBits(on_gpu.State(), before));
  ASSERT_EQ(LaunchSgd(gpu.stream(), on_gpu.table(), {.learning_rate = 1.0F}, scale), cudaSuccess);
  EXPECT_TRUE(testing::HaveTheSameBits(on_gpu.State(), before));
}

TEST(CudaAdamW, ParameterThatNeverHadAGradientStays) {
  Parameter parameter(9);
  for (auto* values : {&parameter.gradient, &parameter.m, &parameter.v}) {
    std::fill(values->begin(), values->end(), 0.0F);
  }
  EmulatedGpu gpu;
  const OnGpu on_gpu(gpu, {parameter});
  ASSERT_EQ(LaunchAdamW(gpu.stream(), on_gpu.table(), CoefficientsOf({.step = 1}), nullptr),
            cudaSuccess);
  EXPECT_EQ(gpu.Values(on_gpu.tensors()[0].value), ToDouble(parameter.value));
}

TEST(CudaSgd, ManyParametersMatchReference) {
  ExpectSgdMatches(ManyParameters(), {.weight_decay = 0.1F}, 0.25F);
}

class CudaSgdStep : public ::testing::TestWithParam<SgdStep> {};

TEST_P(CudaSgdStep, MatchesReference) { ExpectSgdMatches({Parameter(101)}, GetParam(), -4.0F); }

INSTANTIATE_TEST_SUITE_P(Steps, CudaSgdStep,
                         ::testing::Values(SgdStep{}, SgdStep{.momentum = 0.0F},
                                           SgdStep{.weight_decay = 1.0F}));

TEST(CudaRoundParameters, WritesTheWorkingCopiesAlone) {
  const std::vector<Parameter> parameters = ManyParameters();
  const auto state = InEveryOrder([&](EmulatedGpu& gpu) {
    const OnGpu on_gpu(gpu, parameters);
    EXPECT_EQ(LaunchRoundParameters(gpu.stream(), on_gpu.table()), cudaSuccess);
    return on_gpu.State();
  });
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_EQ(state[4 * p], ToDouble(parameters[p].value));
    ExpectWorkingIsValueRounded(parameters[p], state[4 * p], state[4 * p + 3]);
  }
}

// Ties go to the even neighbor; what is no number stays so.
TEST(CudaRoundParameters, RoundsToTheNearest) {
  Parameter parameter(4);
  parameter.value = {0x1.01p0F, 0x1.03p0F, 0x1.010002p0F, std::numeric_limits<float>::infinity()};
  EmulatedGpu gpu;
  const OnGpu on_gpu(gpu, {parameter});
  ASSERT_EQ(LaunchRoundParameters(gpu.stream(), on_gpu.table()), cudaSuccess);
  EXPECT_THAT(gpu.Values(on_gpu.tensors()[0].working),
              ElementsAre(0x1.00p0, 0x1.04p0, 0x1.02p0, std::numeric_limits<double>::infinity()));
}

Vector SquaredNorms(const std::vector<Parameter>& parameters) {
  return InEveryOrder([&](EmulatedGpu& gpu) {
    const OnGpu on_gpu(gpu, parameters);
    const Tensor squares = gpu.Result(DType::kFloat64, static_cast<int64_t>(parameters.size()));
    EXPECT_EQ(LaunchSquaredNorms(gpu.stream(), on_gpu.table(), squares.f64()), cudaSuccess);
    return std::vector<Vector>{gpu.Values(squares)};
  })[0];
}

TEST(CudaSquaredNorms, MatchReferenceInDouble) {
  const std::vector<Parameter> parameters = ManyParameters();
  Vector expected, bounds;
  for (const Parameter& parameter : parameters) {
    expected.push_back(reference::SquaredNorm(ToDouble(parameter.gradient)));
    // Both are off by that much at most.
    bounds.push_back(2.0 * Gamma(static_cast<int64_t>(parameter.gradient.size()), DType::kFloat64) *
                     expected.back());
  }
  EXPECT_THAT(SquaredNorms(parameters), CloseTo(expected, bounds));
}

// More chunks than threads sum them.
TEST(CudaSquaredNorms, OfAVeryLongParameterMatchReferenceInDouble) {
  const int64_t elements = 300 * kChunkElements + 1;
  Parameter parameter(1);
  parameter.gradient = RandomNormal(elements, 1);
  parameter.value = parameter.m = parameter.v = parameter.gradient;
  parameter.has_working = false;
  const double expected = reference::SquaredNorm(ToDouble(parameter.gradient));
  EXPECT_THAT(SquaredNorms({parameter}),
              CloseTo({expected}, 2.0 * Gamma(elements, DType::kFloat64) * expected));
}

// However parameters are divided among devices, and wherever they lie in memory.
TEST(CudaSquaredNorms, HaveTheSameBitsInAnyCompany) {
  std::vector<Parameter> parameters = ManyParameters();
  const Vector together = SquaredNorms(parameters);
  for (size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].offset = 1 - parameters[p].offset;
    EXPECT_THAT(SquaredNorms({parameters[p]}), ElementsAre(together[p])) << "parameter " << p;
  }
}

// Squares of floats that are too large or too small for a float.
TEST(CudaSquaredNorms, HaveTheRangeOfDouble) {
  Parameter large(1), small(1);
  large.gradient = {0x1p100F};
  small.gradient = {0x1p-100F};
  EXPECT_THAT(SquaredNorms({large, small}), ElementsAre(0x1p200, 0x1p-200));
}

// Norm and scale.
std::pair<double, double> ClipScale(const Vector& squares, int64_t rows, float clip_norm) {
  const auto results = InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor norm = gpu.Result(DType::kFloat64, 1), scale = gpu.Result(DType::kFloat32, 1);
    EXPECT_EQ(LaunchClipScale(gpu.stream(), gpu.Doubles(squares).f64(), rows,
                              static_cast<int64_t>(squares.size()) / rows, clip_norm, norm.f64(),
                              scale.f32()),
              cudaSuccess);
    return std::vector<Vector>{gpu.Values(norm), gpu.Values(scale)};
  });
  return {results[0][0], results[1][0]};
}

TEST(CudaClipScale, BringsALargeNormToTheLimit) {
  EXPECT_EQ(ClipScale({9.0, 0.0, 0.0, 16.0}, 2, 2.5F), std::make_pair(5.0, 0.5));
}

TEST(CudaClipScale, LeavesASmallNormAlone) {
  EXPECT_EQ(ClipScale({9.0, 16.0}, 1, 5.0F), std::make_pair(5.0, 1.0));
  EXPECT_EQ(ClipScale({0.0}, 1, 1.0F), std::make_pair(0.0, 1.0));
  EXPECT_EQ(ClipScale({9.0, 16.0}, 1, HUGE_VALF), std::make_pair(5.0, 1.0));
  EXPECT_EQ(ClipScale({0.0}, 1, HUGE_VALF), std::make_pair(0.0, 1.0));
}

TEST(CudaClipScale, IsNoNumberIfTheNormIsNotFinite) {
  for (const float clip_norm : {1.0F, HUGE_VALF}) {
    EXPECT_TRUE(std::isnan(ClipScale({9.0, HUGE_VAL}, 1, clip_norm).second));
    EXPECT_TRUE(std::isnan(ClipScale({std::nan(""), 9.0}, 1, clip_norm).second));
  }
}

// The sum has the bits of one made column after column, however many rows they are spread over.
TEST(CudaClipScale, AddsColumnsInOrder) {
  constexpr size_t kColumns = 700, kRows = 3;
  const std::vector<float> values = RandomNormal(kColumns, 1);
  Vector squares(kColumns * kRows, 0.0);
  double sum = 0.0;
  for (size_t c = 0; c < kColumns; ++c) {
    const double square = static_cast<double>(values[c]) * values[c] * (c % 7 == 0 ? 1e9 : 1.0);
    squares[(c % kRows) * kColumns + c] = square;
    sum += square;
  }
  EXPECT_EQ(ClipScale(squares, kRows, 1.0F).first, std::sqrt(sum));
}

TEST(CudaParameterGroup, WithoutElementsNeedsNoWork) {
  EmulatedGpu gpu;
  const ParameterChunks cut = CutIntoChunks({});
  EXPECT_TRUE(cut.chunks.empty());
  EXPECT_THAT(cut.first_chunk, ElementsAre(0));
  const ParameterTable table;
  EXPECT_EQ(LaunchAdamW(gpu.stream(), table, {}, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchSgd(gpu.stream(), table, {}, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchRoundParameters(gpu.stream(), table), cudaSuccess);
  EXPECT_EQ(LaunchSquaredNorms(gpu.stream(), table, nullptr), cudaSuccess);
}

TEST(CutIntoChunks, CoversEachElementOnce) {
  std::array<float, 4> memory;  // addresses alone matter
  const Tensor value = Float32(memory.data(), Shape{2, kChunkElements + 3});
  const ParameterTensors parameter = {.value = value, .gradient = value, .states = {value, value}};
  const ParameterChunks cut = CutIntoChunks({parameter, parameter});
  EXPECT_THAT(cut.first_chunk, ElementsAre(0, 3, 6));
  int64_t covered = 0;
  for (size_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(cut.chunks[chunk].value, memory.data() + covered);
    covered += cut.chunks[chunk].elements;
  }
  EXPECT_EQ(covered, value.elements());
}

TEST(CutIntoChunksDeath, RefusesTensorsOfOtherSizes) {
  std::array<float, 8> memory;
  const ParameterTensors parameter = {.value = Float32(memory.data(), Shape{8}),
                                      .gradient = Float32(memory.data(), Shape{7})};
  EXPECT_DEATH(CutIntoChunks({parameter}), "a parameter of 8 elements");
}

}  // namespace
}  // namespace stagecoach::kernels::optimizer_test
