#include "kernels/ops/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::optimizer_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBackend;
using ::stagecoach::testing::OpBackends;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ResultsOn;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::ToDouble;
using ::testing::ElementsAre;

// Returns one kind of each device: optimizers are the same for all activation types.
std::vector<OpBackend> Backends() { return {OpBackends().front()}; }

// One parameter with a first moment (or momentum) and a second moment, which is not negative.
struct Parameter {
  explicit Parameter(int64_t elements, uint64_t stream = 0)
      : value(RandomNormal(elements, stream + 1)),
        gradient(RandomNormal(elements, stream + 2)),
        m(RandomNormal(elements, stream + 3)),
        v(RandomNormal(elements, stream + 4)) {
    for (float& second : v) second *= second;
  }

  std::vector<float> value, gradient, m, v;
  std::vector<float> ema;  // empty: it has none
  bool decays = true;
  float rate_factor = 1.0F;
  std::optional<float> weight_decay;
  bool has_working = true;
  int64_t offset = 0;  // in elements
};

// Sizes around those of vectors, of threads' batches, of chunks of 8,192 and of a CPU's tiles of
// 65,536; with and without the optional parts.
std::vector<Parameter> ManyParameters() {
  std::vector<Parameter> parameters;
  for (const int64_t elements :
       {1, 3, 4, 5, 16, 1000, 2048, 2051, 8191, 8192, 8193, 16391, 65536, 65537}) {
    Parameter& parameter = parameters.emplace_back(elements, parameters.size() * 10);
    parameter.decays = parameters.size() % 2 == 0;
    parameter.has_working = parameters.size() % 3 != 0;
    if (parameters.size() % 5 == 3) parameter.rate_factor = 0.25F;
    if (parameters.size() % 5 > 2) parameter.weight_decay = 0.5F;
    parameter.offset = parameters.size() % 4 == 3 ? 1 : 0;
  }
  return parameters;
}

struct State {
  Vector value, m, v, working, ema;
};
struct Outcome {
  std::vector<State> states;  // per parameter
  Vector squares;             // `work` may write these: a number for each parameter
};
using Work = absl::FunctionRef<absl::Status(OptimizerOps&, Stream&, const ParameterGroup&,
                                            const Tensor& scale, const Tensor& squares)>;

template <typename Case>
class OptimizerTest : public OpTest<Case> {
 protected:
  // Returns the parameters after `work`, given a scale or none.
  Outcome After(Work work, const std::vector<Parameter>& parameters,
                std::optional<float> scale = std::nullopt, bool has_v = true) const {
    const OpResults results =
        ResultsOn(this->backend(), testing::Addresses::kAligned, [&](OpBench& bench) {
          std::vector<ParameterTensors> tensors;
          std::vector<Tensor> touched;
          for (const Parameter& parameter : parameters) {
            const ParameterTensors& of = tensors.emplace_back(Place(bench, parameter, has_v));
            touched.insert(touched.end(),
                           {of.value, of.states[0], of.states[1], of.working, of.ema});
          }
          const Tensor factor = scale.has_value() ? bench.Floats({1}, {*scale}) : Tensor{};
          touched.push_back(bench.ResultOf(DType::kFloat64, {std::ssize(parameters)}));
          std::unique_ptr<ParameterGroup> group;
          bench.Run([&](Stream& stream) -> absl::Status {
            OptimizerOps& ops = bench.ops().optimizer();
            ASSIGN_OR_RETURN(group, ops.CreateGroup(stream, tensors));
            return work(ops, stream, *group, factor, touched.back());
          });
          return touched;
        });
    Outcome outcome;
    for (size_t i = 0; i + 5 < results.size(); i += 5) {
      outcome.states.push_back(
          {results[i], results[i + 1], results[i + 2], results[i + 3], results[i + 4]});
    }
    outcome.squares = results.back();
    return outcome;
  }

  Vector SquaredNorms(const std::vector<Parameter>& parameters) const {
    return After([](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor&,
                    const Tensor& squares) { return ops.SquaredNorms(stream, group, squares); },
                 parameters)
        .squares;
  }

 private:
  static ParameterTensors Place(OpBench& bench, const Parameter& parameter, bool has_v) {
    const auto elements = std::ssize(parameter.value);
    const auto place = [&](std::vector<float> values) {
      values.insert(values.begin(), static_cast<size_t>(parameter.offset), 0.0F);
      const Tensor all = bench.Floats({std::ssize(values)}, values);
      return Float32(all.f32() + parameter.offset, Shape{elements});
    };
    Tensor working;
    if (parameter.has_working) {
      working = bench.ResultOf(DType::kBfloat16, {parameter.offset + elements});
      working = {static_cast<std::byte*>(working.data) + 2 * parameter.offset, DType::kBfloat16,
                 Shape{elements}};
    }
    return {.value = place(parameter.value),
            .working = working,
            .gradient = place(parameter.gradient),
            .states = {place(parameter.m), has_v ? place(parameter.v) : Tensor{}},
            .ema = parameter.ema.empty() ? Tensor{} : place(parameter.ema),
            .decays = parameter.decays,
            .rate_factor = parameter.rate_factor,
            .weight_decay = parameter.weight_decay};
  }
};

void ExpectWorkingIsValueRounded(const Parameter& parameter, const State& state) {
  const std::vector<float> value(state.value.begin(), state.value.end());
  EXPECT_TRUE(state.working ==
              (parameter.has_working ? ToDouble(RoundedTo(DType::kBfloat16, value)) : Vector{}));
}

// Sets what the parameter has of its own.
template <typename Step>
void SetRates(const Parameter& parameter, Step& step) {
  step.learning_rate *= parameter.rate_factor;
  step.weight_decay = parameter.decays ? parameter.weight_decay.value_or(step.weight_decay) : 0.0F;
}

// A step's coefficients, and the factor of its gradients.
template <typename Step>
struct Scaled {
  Step step;
  std::optional<float> scale;
};

class AdamW : public OptimizerTest<Scaled<AdamWStep>> {
 protected:
  Outcome AfterStep(const std::vector<Parameter>& parameters) const {
    return After(
        [&](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor& scale,
            const Tensor&) {
          AdamWStep step = shape().step;
          step.gradient_scale = scale;
          return ops.AdamW(stream, step, group);
        },
        parameters, shape().scale);
  }

  void ExpectMatchesReference(const Parameter& parameter, const State& actual) const {
    SCOPED_TRACE(absl::StrCat("parameter of ", parameter.value.size()));
    AdamWStep step = shape().step;
    const double scale = shape().scale.value_or(1.0F);
    SetRates(parameter, step);
    reference::AdamWState expected{ToDouble(parameter.value), ToDouble(parameter.m),
                                   ToDouble(parameter.v)};
    reference::AdamW(step, ToDouble(parameter.gradient), expected, scale);
    const double t = static_cast<double>(step.step);
    const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
    const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
    Vector value_bound, m_bound, v_bound;
    for (size_t k = 0; k < parameter.value.size(); ++k) {
      const double g = std::fabs(parameter.gradient[k] * scale);
      const double m_abs = step.beta1 * std::fabs(parameter.m[k]) + (1.0 - step.beta1) * g;
      const double p_abs = std::fabs(parameter.value[k]);
      const double denominator = std::sqrt(expected.v[k] / correction2) + step.epsilon;
      m_bound.push_back(Gamma(4) * m_abs);
      v_bound.push_back(Gamma(5) * expected.v[k]);
      // The longest path, through v and the root, has 5 roundings for v, 4 for the root, 4 each for
      // two divisions and 7 for the rest.
      value_bound.push_back(Gamma(24) *
                            (p_abs + step.learning_rate * (m_abs / correction1 / denominator +
                                                           step.weight_decay * p_abs)));
    }
    EXPECT_THAT(actual.value, CloseTo(expected.parameter, value_bound));
    EXPECT_THAT(actual.m, CloseTo(expected.m, m_bound));
    EXPECT_THAT(actual.v, CloseTo(expected.v, v_bound));
    ExpectWorkingIsValueRounded(parameter, actual);
  }
};

class Sgd : public OptimizerTest<Scaled<SgdStep>> {
 protected:
  Outcome AfterStep(const std::vector<Parameter>& parameters) const {
    return After(
        [&](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor& scale,
            const Tensor&) {
          SgdStep step = shape().step;
          step.gradient_scale = scale;
          return ops.Sgd(stream, step, group);
        },
        parameters, shape().scale, /*has_v=*/false);
  }

  void ExpectMatchesReference(const Parameter& parameter, const State& actual) const {
    SCOPED_TRACE(absl::StrCat("parameter of ", parameter.value.size()));
    SgdStep step = shape().step;
    const double scale = shape().scale.value_or(1.0F);
    SetRates(parameter, step);
    reference::SgdState expected{ToDouble(parameter.value), ToDouble(parameter.m)};
    reference::Sgd(step, ToDouble(parameter.gradient), expected, scale);
    Vector value_bound, momentum_bound;
    for (size_t k = 0; k < parameter.value.size(); ++k) {
      const double p_abs = std::fabs(parameter.value[k]);
      const double m_abs = step.momentum * std::fabs(parameter.m[k]) +
                           std::fabs(parameter.gradient[k] * scale) + step.weight_decay * p_abs;
      momentum_bound.push_back(Gamma(4) * m_abs);
      value_bound.push_back(Gamma(6) * (p_abs + step.learning_rate * m_abs));
    }
    EXPECT_THAT(actual.value, CloseTo(expected.parameter, value_bound));
    EXPECT_THAT(actual.m, CloseTo(expected.momentum, momentum_bound));
    ExpectWorkingIsValueRounded(parameter, actual);
  }
};

TEST_P(AdamW, MatchesReference) {
  const Parameter parameter(101);
  ExpectMatchesReference(parameter, AfterStep({parameter}).states[0]);
}

TEST_P(Sgd, MatchesReference) {
  const Parameter parameter(101);
  ExpectMatchesReference(parameter, AfterStep({parameter}).states[0]);
}

using AdamWOfAGroup = AdamW;
using SgdOfAGroup = Sgd;

TEST_P(AdamWOfAGroup, MatchesReference) {
  const std::vector<Parameter> parameters = ManyParameters();
  const Outcome outcome = AfterStep(parameters);
  for (size_t p = 0; p < parameters.size(); ++p) {
    ExpectMatchesReference(parameters[p], outcome.states[p]);
  }
}

TEST_P(SgdOfAGroup, MatchesReference) {
  const std::vector<Parameter> parameters = ManyParameters();
  const Outcome outcome = AfterStep(parameters);
  for (size_t p = 0; p < parameters.size(); ++p) {
    ExpectMatchesReference(parameters[p], outcome.states[p]);
  }
}

template <typename Step>
std::string NameOf(const Scaled<Step>& scaled) {
  const Step& step = scaled.step;
  std::string name = absl::StrCat("decay", step.weight_decay * 10);
  if constexpr (std::is_same_v<Step, AdamWStep>) {
    absl::StrAppend(&name, "_step", step.step, step.beta1 == 0.0F ? "_no_beta" : "",
                    step.epsilon == 1.0F ? "_epsilon" : "");
  } else {
    absl::StrAppend(&name, step.momentum == 0.0F ? "_no_momentum" : "");
  }
  return absl::StrCat(name, scaled.scale.has_value() ? "_scaled" : "");
}

// The first step, where the corrections are largest, and one so late that they have vanished; every
// term alone.
using ScaledAdamW = Scaled<AdamWStep>;
INSTANTIATE_OP_TEST_ON(Backends(), AdamW, NameOf<AdamWStep>,
                       ::testing::Values(ScaledAdamW{{.step = 1}}, ScaledAdamW{{.step = 2}},
                                         ScaledAdamW{{.step = 1000000}},
                                         ScaledAdamW{{.beta1 = 0.0F, .beta2 = 0.0F}},
                                         ScaledAdamW{{.epsilon = 1.0F}},
                                         ScaledAdamW{{.weight_decay = 1.0F}},
                                         ScaledAdamW{{}, -4.0F}));
INSTANTIATE_OP_TEST_ON(Backends(), AdamWOfAGroup, NameOf<AdamWStep>,
                       ::testing::Values(ScaledAdamW{
                           {.learning_rate = 0.01F, .weight_decay = 0.1F, .step = 3}, 0.25F}));
using ScaledSgd = Scaled<SgdStep>;
INSTANTIATE_OP_TEST_ON(Backends(), Sgd, NameOf<SgdStep>,
                       ::testing::Values(ScaledSgd{}, ScaledSgd{{.momentum = 0.0F}},
                                         ScaledSgd{{.weight_decay = 1.0F}}, ScaledSgd{{}, -4.0F}));
INSTANTIATE_OP_TEST_ON(Backends(), SgdOfAGroup, NameOf<SgdStep>,
                       ::testing::Values(ScaledSgd{{.weight_decay = 0.1F}, 0.25F}));

// The following tests have no cases except the backends.
struct All {};
class Optimizer : public OptimizerTest<All> {
 protected:
  static absl::Status Both(OptimizerOps& ops, Stream& stream, const ParameterGroup& group,
                           const Tensor& scale, const Tensor& /*squares*/) {
    RETURN_IF_ERROR(ops.AdamW(
        stream, {.weight_decay = 0.1F, .gradient_scale = scale, .step = 1, .ema_share = 0.5F},
        group));
    return ops.Sgd(stream, {.weight_decay = 0.1F, .gradient_scale = scale, .ema_share = 0.5F},
                   group);
  }

  // Returns norm and scale for squares of shape (rows, n).
  std::array<double, 2> ClipScale(const Vector& squares, int64_t rows, float clip_norm) const {
    const auto results = Results([&](OpBench& bench) {
      const Shape shape{rows, std::ssize(squares) / rows};
      const Tensor in{bench.PlaceAll<double>(squares), DType::kFloat64, shape};
      const Tensor norm = bench.ResultOf(DType::kFloat64, {1});
      const Tensor scale = bench.ResultOf(DType::kFloat32, {1});
      bench.Run([&](Stream& stream) {
        return bench.ops().optimizer().ClipScale(stream, in, clip_norm, norm, scale);
      });
      return std::array{norm, scale};
    });
    return {results[0][0], results[1][0]};
  }
};
INSTANTIATE_OP_TEST_ON(
    Backends(), Optimizer, [](const All&) { return "all"; }, ::testing::Values(All{}));

// Returns them, most with an average.
std::vector<Parameter> AveragedParameters() {
  std::vector<Parameter> parameters = ManyParameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (p % 4 != 1) parameters[p].ema = RandomNormal(std::ssize(parameters[p].value), 1000 + p);
  }
  return parameters;
}

TEST_P(Optimizer, AveragesFollowTheNewValues) {
  constexpr float kShare = 0.25F;
  const std::vector<Parameter> parameters = AveragedParameters();
  std::vector<Parameter> without = parameters;
  for (Parameter& parameter : without) parameter.ema.clear();
  for (const bool is_adam : {true, false}) {
    const auto step = [&](OptimizerOps& ops, Stream& stream, const ParameterGroup& group,
                          const Tensor&, const Tensor&) {
      return is_adam ? ops.AdamW(stream, {.weight_decay = 0.1F, .ema_share = kShare}, group)
                     : ops.Sgd(stream, {.weight_decay = 0.1F, .ema_share = kShare}, group);
    };
    const Outcome outcome = After(step, parameters);
    const Outcome plain = After(step, without);
    for (size_t p = 0; p < parameters.size(); ++p) {
      SCOPED_TRACE(absl::StrCat("parameter ", p));
      EXPECT_TRUE(outcome.states[p].value == plain.states[p].value);
      EXPECT_TRUE(outcome.states[p].m == plain.states[p].m);
      EXPECT_TRUE(outcome.states[p].v == plain.states[p].v);
      ExpectWorkingIsValueRounded(parameters[p], outcome.states[p]);
      Vector expected, bounds;
      for (size_t k = 0; k < parameters[p].ema.size(); ++k) {
        const double before = parameters[p].ema[k], value = outcome.states[p].value[k];
        expected.push_back((1.0 - kShare) * before + kShare * value);
        bounds.push_back(Gamma(3) * (std::fabs(before) + std::fabs(value)));
      }
      EXPECT_THAT(outcome.states[p].ema, CloseTo(expected, bounds));
    }
  }
}

TEST_P(Optimizer, AnAverageOfOneValueIsThatValue) {
  Parameter parameter(9);
  for (auto* values : {&parameter.gradient, &parameter.m, &parameter.v}) {
    std::fill(values->begin(), values->end(), 0.0F);
  }
  parameter.ema = parameter.value;
  const Outcome outcome =
      After([](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor&,
               const Tensor&) { return ops.AdamW(stream, {.ema_share = 0.3F}, group); },
            {parameter});
  EXPECT_EQ(outcome.states[0].ema, ToDouble(parameter.value));
}

TEST_P(Optimizer, SwapsAveragesAndRoundsThem) {
  const std::vector<Parameter> parameters = AveragedParameters();
  for (const int times : {1, 2}) {
    const Outcome outcome = After(
        [&](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor&,
            const Tensor&) -> absl::Status {
          for (int i = 0; i < times; ++i) RETURN_IF_ERROR(ops.SwapAverages(stream, group));
          return absl::OkStatus();
        },
        parameters);
    for (size_t p = 0; p < parameters.size(); ++p) {
      SCOPED_TRACE(absl::StrCat("parameter ", p));
      const State& state = outcome.states[p];
      const bool swaps = times == 1 && !parameters[p].ema.empty();
      EXPECT_TRUE(state.value == ToDouble(swaps ? parameters[p].ema : parameters[p].value));
      EXPECT_TRUE(state.ema == ToDouble(swaps ? parameters[p].value : parameters[p].ema));
      if (!parameters[p].ema.empty()) ExpectWorkingIsValueRounded(parameters[p], state);
    }
  }
}

// ClipScale yields such a scale for a norm that is NaN or infinite.
TEST_P(Optimizer, WithAScaleThatIsNoNumberChangesNothing) {
  const std::vector<Parameter> parameters = AveragedParameters();
  const Outcome outcome = After(Both, parameters, std::numeric_limits<float>::quiet_NaN());
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(outcome.states[p].value == ToDouble(parameters[p].value));
    EXPECT_TRUE(outcome.states[p].m == ToDouble(parameters[p].m));
    EXPECT_TRUE(outcome.states[p].v == ToDouble(parameters[p].v));
    EXPECT_TRUE(outcome.states[p].ema == ToDouble(parameters[p].ema));
    for (const double working : outcome.states[p].working) EXPECT_TRUE(std::isnan(working));
  }
}

TEST_P(Optimizer, LeavesAParameterThatNeverHadAGradient) {
  Parameter parameter(9);
  for (auto* values : {&parameter.gradient, &parameter.m, &parameter.v}) {
    std::fill(values->begin(), values->end(), 0.0F);
  }
  parameter.decays = false;
  EXPECT_EQ(After(Both, {parameter}).states[0].value, ToDouble(parameter.value));
}

TEST_P(Optimizer, NeedsNoWorkWithoutElements) {
  After(
      [](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor& scale,
         const Tensor& squares) -> absl::Status {
        RETURN_IF_ERROR(Both(ops, stream, group, scale, squares));
        RETURN_IF_ERROR(ops.RoundParameters(stream, group));
        return ops.SquaredNorms(stream, group, squares);
      },
      {});
}

TEST_P(Optimizer, RoundsTheWorkingCopiesAlone) {
  std::vector<Parameter> parameters = ManyParameters();
  // Ties go to the even neighbor; infinity stays infinite.
  Parameter& special = parameters.emplace_back(4);
  special.value = {0x1.01p0F, 0x1.03p0F, 0x1.010002p0F, std::numeric_limits<float>::infinity()};
  const Outcome outcome =
      After([](OptimizerOps& ops, Stream& stream, const ParameterGroup& group, const Tensor&,
               const Tensor&) { return ops.RoundParameters(stream, group); },
            parameters);
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(outcome.states[p].value == ToDouble(parameters[p].value));
    ExpectWorkingIsValueRounded(parameters[p], outcome.states[p]);
  }
  EXPECT_THAT(outcome.states.back().working, ElementsAre(0x1.00p0, 0x1.04p0, 0x1.02p0, HUGE_VAL));
}

TEST_P(Optimizer, SquaredNormsMatchReferenceInDouble) {
  std::vector<Parameter> parameters = ManyParameters();
  // More chunks than a block has threads.
  Parameter& very_long = parameters.emplace_back(1);
  very_long.gradient = RandomNormal(300 * 8192 + 1, 1);
  very_long.value = very_long.m = very_long.v = very_long.gradient;
  very_long.has_working = false;
  Vector expected, bounds;
  for (const Parameter& parameter : parameters) {
    expected.push_back(reference::SquaredNorm(ToDouble(parameter.gradient)));
    // Both are off by at most that much.
    bounds.push_back(2.0 * Gamma(std::ssize(parameter.gradient), DType::kFloat64) *
                     expected.back());
  }
  EXPECT_THAT(SquaredNorms(parameters), CloseTo(expected, bounds));
}

// The bits do not depend on how parameters are divided among devices, or where they lie in memory.
TEST_P(Optimizer, SquaredNormsHaveTheSameBitsInAnyCompany) {
  std::vector<Parameter> parameters = ManyParameters();
  const Vector together = SquaredNorms(parameters);
  for (size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].offset = 1 - parameters[p].offset;
    EXPECT_THAT(SquaredNorms({parameters[p]}), ElementsAre(together[p])) << "parameter " << p;
  }
}

// Squares of floats that are too large or too small for a float.
TEST_P(Optimizer, SquaredNormsHaveTheRangeOfDouble) {
  Parameter large(1), small(1);
  large.gradient = {0x1p100F};
  small.gradient = {0x1p-100F};
  EXPECT_THAT(SquaredNorms({large, small}), ElementsAre(0x1p200, 0x1p-200));
}

// Rows are ranks, each of which has squares of only its own parameters.
TEST_P(Optimizer, ClippingBringsALargeNormToTheLimit) {
  EXPECT_THAT(ClipScale({9.0, 0.0, 0.0, 0.0, 4.0, 12.0}, 2, 2.5F), ElementsAre(5.0, 0.5));
}

TEST_P(Optimizer, ClippingLeavesASmallNormAlone) {
  for (const float clip_norm : {5.0F, 6.0F, HUGE_VALF}) {
    EXPECT_THAT(ClipScale({9.0, 16.0}, 1, clip_norm), ElementsAre(5.0, 1.0));
    EXPECT_THAT(ClipScale({0.0}, 1, clip_norm), ElementsAre(0.0, 1.0));
  }
}

TEST_P(Optimizer, ClippingIsByNoNumberIfTheNormIsNotFinite) {
  for (const float clip_norm : {1.0F, HUGE_VALF}) {
    EXPECT_TRUE(std::isnan(ClipScale({9.0, HUGE_VAL}, 1, clip_norm)[1]));
    EXPECT_TRUE(std::isnan(ClipScale({std::nan(""), 9.0}, 1, clip_norm)[1]));
  }
}

// The sum has the bits of a sum column by column, over however many rows they are spread.
TEST_P(Optimizer, NormsAddColumnsInOrder) {
  constexpr size_t kColumns = 700, kRows = 3;
  const std::vector<float> values = RandomNormal(kColumns, 1);
  Vector squares(kColumns * kRows, 0.0);
  double sum = 0.0;
  for (size_t c = 0; c < kColumns; ++c) {
    const double square = static_cast<double>(values[c]) * values[c] * (c % 7 == 0 ? 1e9 : 1.0);
    squares[(c % kRows) * kColumns + c] = square;
    sum += square;
  }
  EXPECT_EQ(ClipScale(squares, kRows, 1.0F)[0], std::sqrt(sum));
}

// Neither the step's coefficients nor its scale affect an average, unless the scale is NaN; nor do
// the optimizer and the rest of the group.
TEST_P(Optimizer, MovingAveragesFollowTheShareOfTheSum) {
  constexpr int64_t kElements = 8192 + 3;
  for (const float factor : {0.125F, std::numeric_limits<float>::quiet_NaN()}) {
    const auto results = Results([&](OpBench& bench) {
      std::vector<float> values(kElements, 8.0F), sums(kElements, 0.0F);
      values[0] = 1.0F, values[1] = -2.0F, values[kElements - 1] = -2.0F;
      sums[0] = 4.0F, sums[1] = 8.0F, sums[kElements - 1] = 8.0F;
      const Shape shape{kElements};
      const Tensor value = bench.Floats(shape, values), sum = bench.Floats(shape, sums);
      const ParameterTensors average = {
          .value = value, .gradient = sum, .average = {{.momentum = 0.25F, .share = 0.5F}}};
      const auto other = [&]() -> ParameterTensors {
        const auto one = [&](float number) { return bench.Floats({1}, {number}); };
        return {.value = one(1.0F), .gradient = one(-2.0F), .states = {one(0.0F), one(0.0F)}};
      };
      const std::array parameters = {other(), average, other()};
      const Tensor scale = bench.Floats({1}, {factor});
      const Tensor after_adamw = bench.ResultOf(DType::kFloat32, shape);
      const Tensor squares = bench.ResultOf(DType::kFloat64, {3});
      bench.Run([&](Stream& stream) -> absl::Status {
        OptimizerOps& ops = bench.ops().optimizer();
        ASSIGN_OR_RETURN(const auto group, ops.CreateGroup(stream, parameters));
        RETURN_IF_ERROR(ops.RoundParameters(stream, *group));
        RETURN_IF_ERROR(ops.AdamW(stream, {.weight_decay = 0.5F, .gradient_scale = scale}, *group));
        RETURN_IF_ERROR(bench.ops().elementwise().Copy(stream, value, after_adamw));
        RETURN_IF_ERROR(ops.Sgd(stream, {.weight_decay = 0.5F, .gradient_scale = scale}, *group));
        return ops.SquaredNorms(stream, *group, squares);
      });
      return std::array{value, after_adamw, squares};
    });
    const auto ends = [](const Vector& of) { return Vector{of[0], of[1], of[2], of.back()}; };
    const bool changes = factor == factor;
    EXPECT_EQ(ends(results[1]),
              (changes ? Vector{1.25, -0.5, 6.0, -0.5} : Vector{1.0, -2.0, 8.0, -2.0}));
    EXPECT_EQ(ends(results[0]),
              (changes ? Vector{1.4375, 0.625, 4.5, 0.625} : Vector{1.0, -2.0, 8.0, -2.0}));
    EXPECT_EQ(results[2], (Vector{4.0, 0.0, 4.0}));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::optimizer_test
