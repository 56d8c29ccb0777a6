#include "engine/runtime/stage/optimizer.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::Shape;
using kernels::Tensor;
using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::TestDevice;
using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(CheckOptimizer, TakesTheDefaults) {
  EXPECT_OK(CheckOptimizer(Optimizer::AdamW()));
  EXPECT_OK(CheckOptimizer(Optimizer::Sgd()));
}

TEST(CheckOptimizer, TakesZeroWhereThatHasAMeaning) {
  Optimizer optimizer;
  optimizer.weight_decay = 0.0F;
  optimizer.beta1 = optimizer.beta2 = 0.0F;
  optimizer.momentum = 0.0F;
  optimizer.clip_norm = 0.0F;
  EXPECT_OK(CheckOptimizer(optimizer));
}

TEST(CheckOptimizer, RefusesWhatIsOutOfRange) {
  const Refusal<Change<Optimizer>> refusals[] = {
      {[](Optimizer& o) { o.weight_decay = -0.1F; }, "weight decay is -0.1"},
      {[](Optimizer& o) { o.weight_decay = kNan; }, "weight decay is nan"},
      {[](Optimizer& o) { o.weight_decay = kInfinity; }, "weight decay is inf"},
      {[](Optimizer& o) { o.beta1 = -0.1F; }, "beta1 is -0.1"},
      {[](Optimizer& o) { o.beta1 = 1.0F; }, "beta1 is 1"},
      {[](Optimizer& o) { o.beta1 = kNan; }, "beta1 is nan"},
      {[](Optimizer& o) { o.beta2 = -0.1F; }, "beta2 is -0.1"},
      {[](Optimizer& o) { o.beta2 = 1.0F; }, "beta2 is 1"},
      {[](Optimizer& o) { o.epsilon = 0.0F; }, "epsilon is 0"},
      {[](Optimizer& o) { o.epsilon = kNan; }, "epsilon is nan"},
      {[](Optimizer& o) { o.momentum = -0.1F; }, "momentum is -0.1"},
      {[](Optimizer& o) { o.momentum = 1.0F; }, "momentum is 1"},
      {[](Optimizer& o) { o.ema_decay = -0.1F; }, "EMA decay is -0.1"},
      {[](Optimizer& o) { o.ema_decay = 1.0F; }, "EMA decay is 1, must be in [0, 1)"},
      {[](Optimizer& o) { o.ema_decay = kNan; }, "EMA decay is nan"},
      {[](Optimizer& o) { o.clip_norm = -1.0F; }, "clip norm is -1"},
      {[](Optimizer& o) { o.clip_norm = kInfinity; }, "clip norm is inf"},
  };
  ExpectRefusedChanges(Optimizer(), CheckOptimizer, refusals);
}

// Returns two parameters after one update with gradients of 1 and -1 at a learning rate of 0.5.
std::vector<double> UpdateOnce(const Optimizer& optimizer, bool decays, float gradient_scale) {
  TestDevice device;
  const Shape shape{2};
  const Tensor parameter = device.Operand(shape, {2.0F, 4.0F});
  const Tensor gradient = device.Operand(shape, {1.0F, -1.0F});
  const auto zeros = [&] { return device.Operand(shape, {0.0F, 0.0F}); };
  const Tensor scale = device.Operand(Shape{1}, {gradient_scale});
  EXPECT_OK(device.Run([&](kernels::Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(const auto group,
                     device.ops().optimizer().CreateGroup(stream, {{.value = parameter,
                                                                    .gradient = gradient,
                                                                    .states = {zeros(), zeros()},
                                                                    .decays = decays}}));
    return UpdateParameters(optimizer, {.step = 1, .learning_rate = 0.5F, .gradient_scale = scale},
                            device.device(), *group);
  }));
  return TestDevice::Values(parameter);
}

TEST(UpdateParameters, FollowsTheGradient) {
  EXPECT_THAT(UpdateOnce(Optimizer::Sgd(), true, 1.0F), ElementsAre(1.5, 4.5));
}

TEST(UpdateParameters, ScalesTheGradient) {
  EXPECT_THAT(UpdateOnce(Optimizer::Sgd(), true, 0.5F), ElementsAre(1.75, 4.25));
}

TEST(UpdateParameters, DecaysOnlyWhatShouldDecay) {
  Optimizer optimizer = Optimizer::Sgd();
  optimizer.weight_decay = 0.25F;
  EXPECT_THAT(UpdateOnce(optimizer, true, 1.0F), ElementsAre(1.25, 4.0));
  EXPECT_THAT(UpdateOnce(optimizer, false, 1.0F), ElementsAre(1.5, 4.5));
}

// The first step of AdamW is as long as the learning rate, whatever the gradient.
TEST(UpdateParameters, AdamWAtFirstStepsByTheLearningRate) {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.weight_decay = 0.0F;
  const std::vector<double> updated = UpdateOnce(optimizer, true, 1.0F);
  EXPECT_NEAR(updated[0], 1.5, 1e-6);
  EXPECT_NEAR(updated[1], 4.5, 1e-6);
}

TEST(OptimizerStates, AreTwoForAdamWAndOneForSgd) {
  for (const OptimizerType& type : OptimizerTypes()) {
    EXPECT_EQ(&TypeOf(type.defaults), &type) << "the order is that of kinds";
    EXPECT_EQ(FindOptimizerType(type.name), &type);
    EXPECT_LE(type.states.size(), kernels::ParameterTensors().states.size());
  }
  EXPECT_EQ(Optimizer::AdamW().states(), 2);
  EXPECT_EQ(Optimizer::Sgd().states(), 1);
}

// gradient, parameter and states: all read, all but the gradient written.
TEST(OptimizerStates, CountInTheWorkOfAStep) {
  EXPECT_DOUBLE_EQ(Optimizer::AdamW().StepWork(10).bytes, 10 * 28.0);
  EXPECT_DOUBLE_EQ(Optimizer::Sgd().StepWork(10).bytes, 10 * 20.0);
}

}  // namespace
}  // namespace stagecoach::engine
