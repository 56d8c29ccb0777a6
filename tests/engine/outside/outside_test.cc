// A user's layer with parameters and a user's loss, with kernels of their own for CPU and CUDA
// devices: all they need of Stagecoach is its public headers. docs/development.md names them as
// examples.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/nn/chain_on_device.h"
#include "tests/engine/outside/hinge_loss.h"
#include "tests/engine/outside/prelu.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::outside::Hinge;
using ::outside::Prelu;
using ::stagecoach::testing::CentralDifferences;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

TEST(OutsideTheTree, LayerHasTheGradientsOfFiniteDifferences) {
  for (bool splits_backward : {false, true}) {
    ChainOnDevice chain({"", Shape{5}, {Linear(4), Prelu(0.25F), Linear(3)}, 4.0F},
                        splits_backward);
    const std::vector<double> variables = chain.RandomVariables();
    const std::vector<double> expected = NumericalGradients(chain, variables);
    const double bound = NumericalBound(chain);
    chain.SetVariables(variables);
    chain.Forward();
    chain.Backward();
    EXPECT_THAT(chain.Gradients(), CloseTo(expected, bound));
  }
}

// Evaluates the formula itself, in double precision.
double HingeOf(const std::vector<double>& y, const std::vector<int32_t>& labels) {
  const size_t classes = y.size() / labels.size();
  double sum = 0.0;
  for (size_t row = 0; row < labels.size(); ++row) {
    const auto label = static_cast<size_t>(labels[row]);
    double loss = 0.0;
    for (size_t c = 0; c < classes; ++c) {
      if (c != label) loss = std::max(loss, 1.0 + y[row * classes + c] - y[row * classes + label]);
    }
    sum += loss;
  }
  return sum;
}

TEST(OutsideTheTree, LossHasTheGradientOfFiniteDifferences) {
  constexpr int64_t kRows = 6, kClasses = 4;
  TestDevice device;
  const std::vector<float> values = RandomNormal(kRows * kClasses, 1);
  const std::vector<int32_t> labels = RandomLabels(kRows, kClasses, 2);
  const Tensor y = device.Operand(Shape{kRows, kClasses}, values);
  const Tensor targets = device.Labels(labels);
  const Tensor dy = device.Result(Shape{kRows, kClasses});
  const Tensor result = device.Result(Shape{2}, kernels::DType::kFloat64);
  const kernels::LossTerms terms = {.valid_samples = kRows};
  ASSERT_OK(device.Run([&](kernels::Stream& stream) -> absl::Status {
    const std::unique_ptr<Loss> loss = Hinge()();
    RETURN_IF_ERROR(loss->Prepare({device.device(), kRows, Shape{kClasses}}).status());
    return loss->Compute({.stream = stream,
                          .y = y,
                          .targets = targets,
                          .terms = &terms,
                          .dy = dy,
                          .result = result});
  }));
  const auto expected = [&](const std::vector<double>& at) { return HingeOf(at, labels); };
  EXPECT_NEAR(TestDevice::Values(result)[0], expected(ToDouble(values)), 1e-12);
  // The loss is linear around this point.
  EXPECT_THAT(TestDevice::Values(dy),
              CloseTo(CentralDifferences(expected, ToDouble(values)), 1e-9));
}

TinyRun SmallRun(kernels::DeviceKind kind, int devices, const std::string& schedule) {
  TinyRun run{
      .model = {.input = Shape{kSmallFeatures},
                .layers = {Linear(12), Prelu(0.25F), Linear(9), Prelu(0.1F), Linear(kSmallClasses)},
                .loss = Hinge()},
      .devices = devices,
      .schedule = schedule};
  run.options.device.kind = kind;
  return run;
}

TEST(OutsideTheTree, KernelsOfBothKindsOfDeviceAgree) {
  ASSERT_OK_AND_ASSIGN(const TinyAnswer cpu,
                       AnswerOf(SmallRun(kernels::DeviceKind::kCpu, 1, "gpipe")));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer cuda,
                       AnswerOf(SmallRun(kernels::DeviceKind::kCuda, 1, "gpipe")));
  EXPECT_EQ(cuda.initial_hash, cpu.initial_hash);
  // Products round differently: some 20 terms each, in five layers, over two steps.
  EXPECT_THAT(cuda.losses, CloseTo(cpu.losses, 1e-4));
  EXPECT_THAT(cuda.gradient_norms, CloseTo(cpu.gradient_norms, 1e-4));
  EXPECT_NEAR(cuda.evaluation_loss, cpu.evaluation_loss, 1e-4);
}

TEST(OutsideTheTree, GiveTheSameBitsForEveryPartition) {
  for (const kernels::DeviceKind kind : {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCuda}) {
    ASSERT_OK_AND_ASSIGN(const TinyAnswer alone, AnswerOf(SmallRun(kind, 1, "gpipe")));
    EXPECT_NE(alone.final_hash, alone.initial_hash);
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      ASSERT_OK_AND_ASSIGN(const TinyAnswer cut, AnswerOf(SmallRun(kind, 3, schedule)));
      EXPECT_EQ(cut, alone) << schedule;
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
