#include "tests/engine/train/runs/adamw_steps.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/shard_files.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/close_to.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using kernels::AdamWStep;
using kernels::reference::AdamWState;
using kernels::reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::TestFolder;

constexpr int kSteps = 3;

using States = std::map<ParameterId, AdamWState>;  // the states of what AdamW updates

States StatesOf(Trainer& trainer, const ParameterTable& parameters, const Optimizer& optimizer) {
  const TestFolder folder;
  const Checkpoint checkpoint =
      Checkpoint::Open(trainer.Save(folder.path().string()).value()).value();
  States states;
  const std::vector<ShardFile> files = ShardFilesOf(parameters, optimizer).value();
  for (const ShardFile& file : files) {
    const LoadedFile loaded = checkpoint.Load(file.name).value();
    for (const ShardTensor& tensor : file.tensors) {
      if (parameters[tensor.parameter].update.is_average()) continue;
      AdamWState& state = states[tensor.parameter];
      Vector& place = tensor.state == kTrainedValue ? state.parameter
                      : tensor.state == 0           ? state.m
                                                    : state.v;
      std::vector<float> space;
      const absl::Span<const float> values =
          loaded.ValuesOf({.name = tensor.name, .shape = tensor.shape}, space).value();
      place.assign(values.begin(), values.end());
    }
  }
  return states;
}

// Solves m = beta1 m + (1 - beta1) g for g.
Vector GradientOf(const AdamWStep& step, const AdamWState& before, const AdamWState& after) {
  const double beta1 = step.beta1;
  Vector gradient;
  for (size_t i = 0; i < after.m.size(); ++i) {
    gradient.push_back((after.m[i] - beta1 * before.m[i]) / (1.0 - beta1));
  }
  return gradient;
}

// Expects an update within the bounds of optimizer_test.cc, plus what the roundings of m do to the
// gradient that is read from it, and this to v.
void ExpectUpdate(const AdamWStep& step, const Vector& gradient, const AdamWState& before,
                  const AdamWState& after) {
  AdamWState expected = before;
  kernels::reference::AdamW(step, gradient, expected);
  const double correction1 = 1.0 - std::pow(double{step.beta1}, step.step);
  const double correction2 = 1.0 - std::pow(double{step.beta2}, step.step);
  const double share1 = 1.0 - double{step.beta1}, share2 = 1.0 - double{step.beta2};
  Vector v_bounds, bounds;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = std::fabs(gradient[i]), p = std::fabs(before.parameter[i]);
    const double v = expected.v[i];
    const double m = step.beta1 * std::fabs(before.m[i]) + share1 * g;
    const double g_error = Gamma(4) * m / share1;
    v_bounds.push_back(Gamma(5) * v + share2 * g_error * (2.0 * g + g_error) +
                       PrecisionOf(kernels::DType::kFloat32).underflow);
    const double moved = m / correction1 / (std::sqrt(v / correction2) + step.epsilon);
    const double v_error = v == 0.0 ? 0.0 : v_bounds.back() / v;
    bounds.push_back(Gamma(24) * (p + step.learning_rate * (moved + step.weight_decay * p)) +
                     step.learning_rate * moved * v_error);
  }
  EXPECT_THAT(after.parameter, CloseTo(expected.parameter, bounds));
  EXPECT_THAT(after.v, CloseTo(expected.v, v_bounds));
}

}  // namespace

void ExpectStepsOfAdamW(Trainer& trainer, Trainer& exact, const Model& model, const Dataset& data,
                        const TrainerOptions& options, double tolerance) {
  const ParameterTable parameters = AnalyzeModel(model, {}).value().parameters;
  const Optimizer& optimizer = options.optimizer;
  States before = StatesOf(trainer, parameters, optimizer);
  States exact_before = StatesOf(exact, parameters, optimizer);
  for (int64_t number = 1; number <= kSteps; ++number) {
    for (const ModelParameter& parameter : parameters.all()) {
      if (parameter.is_copy()) continue;
      ASSERT_OK(exact.SetParameter(parameter.name, trainer.Parameter(parameter.name).value()));
    }
    for (Trainer* const each : {&trainer, &exact}) {
      ASSERT_OK(each->Step(data, Rows(0, data.rows())));
    }
    States after = StatesOf(trainer, parameters, optimizer);
    States exact_after = StatesOf(exact, parameters, optimizer);
    double squares = 0.0, squared_errors = 0.0;
    for (const auto& [id, state] : after) {
      const ModelParameter& parameter = parameters[id];
      SCOPED_TRACE(absl::StrCat("step ", number, ", ", parameter.name));
      const AdamWStep step = {.learning_rate = options.learning_rate.At(number).value(),
                              .beta1 = optimizer.beta1,
                              .beta2 = optimizer.beta2,
                              .epsilon = optimizer.epsilon,
                              .weight_decay = parameter.decays ? optimizer.weight_decay : 0.0F,
                              .step = number};
      const Vector gradient = GradientOf(step, before.at(id), state);
      const Vector expected = GradientOf(step, exact_before.at(id), exact_after.at(id));
      for (size_t i = 0; i < gradient.size(); ++i) {
        squares += expected[i] * expected[i];
        squared_errors += (gradient[i] - expected[i]) * (gradient[i] - expected[i]);
      }
      ExpectUpdate(step, gradient, before.at(id), state);
    }
    EXPECT_GT(squares, 0.0);
    EXPECT_LE(std::sqrt(squared_errors), tolerance * std::sqrt(squares)) << "step " << number;
    before = std::move(after);
    exact_before = std::move(exact_after);
  }
}

}  // namespace stagecoach::engine
