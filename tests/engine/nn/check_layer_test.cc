#include "engine/nn/check_layer.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/image/conv2d.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::StartsWith;

constexpr absl::StatusCode kWrong = absl::StatusCode::kFailedPrecondition;

TEST(CheckLayer, FindsNothingWrongWithTheHousesLayers) {
  EXPECT_OK(CheckLayer(Linear(4, Activation::kGelu), {.input = Shape{5}}));
  EXPECT_OK(CheckLayer(Linear(4, Activation::kRelu), {.input = Shape{5}}));
  EXPECT_OK(CheckLayer(LayerNorm(), {.input = Shape{8}}));
  for (const Activation activation : kernels::kAllActivations) {
    EXPECT_OK(CheckLayer(Activate(activation), {.input = Shape{2, 4}}))
        << kernels::ActivationName(activation);
  }
  EXPECT_OK(CheckLayer(Dropout(0.3F), {.input = Shape{20}}));
  EXPECT_OK(CheckLayer(Embedding({.vocabulary = 7, .features = 6}),
                       {.input = Shape{4}, .vocabulary = 7}));
  EXPECT_OK(CheckLayer(Attention({.heads = 2}), {.input = Shape{5, 24}}));
  EXPECT_OK(
      CheckLayer(Conv2d({.outputs = 3, .kernel = 3, .padding = 1}), {.input = Shape{2, 4, 4}}));
  EXPECT_OK(CheckLayer(Residual({LayerNorm(), Linear(6, Activation::kGelu), Linear(4)}),
                       {.input = Shape{4}}));
}

// The mistakes that a layer may make.
enum class Fault {
  kNone,
  kFails,
  kThrows,
  kGivesNaN,
  kWritesBehindY,
  kChangesX,
  kCounts,
  kKeepsX,
  kReadsOldY,
  kForgetsInput,
  kForgetsOutput,
  kForgetsGradient,
  kReadsStashLate,
  kWrongInput,
  kWrongWeight,
  kOverwrites,
  kOtherBackward,
};

// y = x^2 scale, which keeps y in its stash for no reason, so that it can be read too late.
class Square final : public Layer {
 public:
  explicit Square(Fault fault) : fault_(fault) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (Is(Fault::kFails)) return absl::InvalidArgumentError("no");
    rows_ = context.rows;
    features_ = context.input.elements();
    LayerSpec spec;
    spec.description = "square";
    spec.output = context.input;
    spec.parameters = {{"scale", Shape{features_}, Init::Constant(1.0F)}};
    spec.memory.stash_bytes = rows_ * features_ * 4;
    spec.memory.output_gradient_last_use =
        Is(Fault::kForgetsGradient) ? LastUse::kBackwardInput : LastUse::kBackwardWeight;
    spec.memory.input_last_use =
        Is(Fault::kForgetsInput) ? LastUse::kBackwardInput : LastUse::kBackwardWeight;
    spec.memory.output_last_use = LastUse::kForward;
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    if (Is(Fault::kThrows)) throw std::runtime_error("ran away");
    ++calls_;
    auto* const stash = reinterpret_cast<float*>(args.stash);
    for (int64_t i = 0; i < rows_ * features_; ++i) {
      const float x = args.x.f32()[i];
      const float old = Is(Fault::kReadsOldY) ? 0.0F * args.y.f32()[i] : 0.0F;
      args.y.f32()[i] = x * x * Scale(args, i) + old;
      stash[i] = x;
      if (Is(Fault::kChangesX)) args.x.f32()[i] = 0.0F;
    }
    if (Is(Fault::kGivesNaN)) args.y.f32()[1] = 0.0F / 0.0F * args.x.f32()[0];
    if (Is(Fault::kWritesBehindY)) args.y.f32()[rows_ * features_] = 0.0F;
    if (Is(Fault::kCounts)) args.y.f32()[0] += static_cast<float>(calls_);
    kept_.assign(args.x.f32(), args.x.f32() + rows_ * features_);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    const auto* const stash = reinterpret_cast<const float*>(args.stash);
    if (args.dx.empty()) return absl::OkStatus();
    for (int64_t i = 0; i < rows_ * features_; ++i) {
      const float x = Is(Fault::kKeepsX) ? kept_[static_cast<size_t>(i)] : stash[i];
      const float y = Is(Fault::kForgetsOutput) ? 0.0F * args.y.f32()[i] : 0.0F;
      const float factor = Is(Fault::kWrongInput) ? 1.9F : 2.0F;
      args.dx.f32()[i] = factor * x * Scale(args, i) * args.dy.f32()[i] + y;
    }
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    float* const gradient = args.gradients[0].f32();
    if (!args.accumulate || Is(Fault::kOverwrites)) std::fill_n(gradient, features_, 0.0F);
    const auto* const x =
        Is(Fault::kReadsStashLate) ? reinterpret_cast<const float*>(args.stash) : args.x.f32();
    for (int64_t i = 0; i < rows_ * features_; ++i) {
      const float factor = Is(Fault::kWrongWeight) ? 1.1F : 1.0F;
      gradient[i % features_] += factor * x[i] * x[i] * args.dy.f32()[i];
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const LayerArgs& args) override {
    RETURN_IF_ERROR(BackwardInput(args));
    RETURN_IF_ERROR(BackwardWeight(args));
    if (Is(Fault::kOtherBackward)) args.gradients[0].f32()[0] *= 1.0001F;
    return absl::OkStatus();
  }

 private:
  bool Is(Fault fault) const { return fault_ == fault; }
  float Scale(const LayerArgs& args, int64_t i) const {
    return args.parameters[0].f32()[i % features_];
  }

  const Fault fault_;
  int64_t rows_ = 0, features_ = 0;
  int calls_ = 0;
  std::vector<float> kept_;
};

absl::Status CheckSquare(Fault fault) {
  return CheckLayer(LayerOf<Square>(fault), {.input = Shape{4}});
}

TEST(CheckLayer, NamesWhatIsWrong) {
  EXPECT_OK(CheckSquare(Fault::kNone));
  EXPECT_THAT(CheckSquare(Fault::kFails), IsRefused(StartsWith("no")));
  EXPECT_THAT(CheckSquare(Fault::kThrows),
              StatusIs(absl::StatusCode::kInternal, "Forward throws: ran away"));
  const std::pair<Fault, const char*> faults[] = {
      {Fault::kGivesNaN, "Forward gives y that is not finite"},
      {Fault::kWritesBehindY, "Forward writes outside of y"},
      {Fault::kChangesX, "Forward changes x, which it may only read"},
      {Fault::kCounts, "y has other bits when it is computed again"},
      {Fault::kKeepsX, "dx has other bits while another micro-batch is in flight"},
      {Fault::kReadsOldY, "y depends on what its own memory, or an area, held before"},
      {Fault::kForgetsInput, "BackwardWeight reads x, but memory.input_last_use is kBackwardInput"},
      {Fault::kForgetsOutput, "BackwardInput reads y, but memory.output_last_use is kForward"},
      {Fault::kForgetsGradient,
       "BackwardWeight reads dy, but memory.output_gradient_last_use is kBackwardInput"},
      {Fault::kReadsStashLate,
       "BackwardWeight reads the stash, but that is kept until BackwardInput"},
      {Fault::kWrongInput, "BackwardInput: dx has "},
      {Fault::kWrongWeight, "BackwardWeight: the gradient of scale has "},
      {Fault::kOverwrites, "BackwardWeight with accumulate gives "},
      {Fault::kOtherBackward, "Backward gives other bits of the gradient of scale"},
  };
  for (const auto& [fault, message] : faults) {
    EXPECT_THAT(CheckSquare(fault), StatusIs(kWrong, message));
  }
}

}  // namespace
}  // namespace stagecoach::engine
