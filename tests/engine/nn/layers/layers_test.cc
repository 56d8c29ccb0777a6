#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "engine/nn/layer.h"
#include "engine/nn/sequential.h"
#include "engine/stagecoach.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::TestDevice;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns y of a layer for `values` as x, with random parameters.
std::vector<double> ForwardOf(const LayerFactory& factory, int64_t rows, const Shape& sample,
                              const Shape& output, const std::vector<float>& values) {
  TestDevice device;
  const Tensor x = device.Operand(sample.Batched(rows), values);
  const Tensor y = device.Result(output.Batched(rows));
  EXPECT_OK(device.Run([&](kernels::Stream& stream) -> absl::Status {
    const std::unique_ptr<Layer> layer = factory();
    ASSIGN_OR_RETURN(const LayerSpec spec,
                     layer->Prepare(LayerContext{device.device(), rows, sample}));
    EXPECT_EQ(spec.output, output);
    std::vector<Tensor> parameters;
    for (const ParameterSpec& parameter : spec.parameters) {
      const int64_t elements = parameter.shape.elements();
      parameters.push_back(device.Operand(
          parameter.shape, RandomUniform(-1.0F, 1.0F, elements, /*stream=*/parameters.size())));
    }
    return layer->Forward({.stream = stream,
                           .x = x,
                           .y = y,
                           .parameters = parameters,
                           .weight_stash = device.Workspace(spec.memory.weight_stash_bytes),
                           .workspace = device.Workspace(spec.memory.workspace_bytes)});
  }));
  return TestDevice::Values(y);
}

// The positions of 3 samples behave like 6 samples.
TEST(LayerShapes, PositionsAreLikeSamplesToLayersOfTheLastAxis) {
  const std::vector<float> values = RandomUniform(-1.0F, 1.0F, 24, 3);
  const auto expect_same = [&](const LayerFactory& layer, int64_t outputs) {
    EXPECT_EQ(ForwardOf(layer, 3, Shape{2, 4}, Shape{2, outputs}, values),
              ForwardOf(layer, 6, Shape{4}, Shape{outputs}, values));
    EXPECT_EQ(ForwardOf(layer, 1, Shape{3, 2, 4}, Shape{3, 2, outputs}, values),
              ForwardOf(layer, 6, Shape{4}, Shape{outputs}, values));
  };
  expect_same(Linear(3, Activation::kGelu), 3);
  expect_same(LayerNorm(), 4);
  expect_same(RmsNorm(), 4);
  expect_same(SwiGlu(), 2);
}

TEST(LayerShapes, LayersOfTheLastAxisRefuseSamplesWithoutAxes) {
  TestDevice device;
  for (const LayerFactory& layer : {Linear(4), LayerNorm(), RmsNorm(), SwiGlu()}) {
    EXPECT_THAT(layer()->Prepare(LayerContext{device.device(), 3, Shape{}}),
                IsRefused("at least one axis"));
  }
}

// y is one number, whatever x is.
class ConstantLayer final : public Layer {
 public:
  explicit ConstantLayer(float value) : value_(value) {}
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    LayerSpec spec;
    spec.output = context.input;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    std::fill_n(static_cast<float*>(args.y.data), args.y.elements(), value_);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }

 private:
  const float value_;
};

std::vector<double> SumOfConstants(const std::vector<float>& values) {
  std::vector<std::vector<LayerFactory>> branches;
  for (const float value : values) branches.push_back({LayerOf<ConstantLayer>(value)});
  return ForwardOf(Branches(branches), 1, Shape{1}, Shape{1}, {0.0F});
}

// Additions of float32: 1 vanishes beside 1e8.
TEST(BranchesLayer, AddsInATreeWhoseLeftHalfIsAPowerOfTwo) {
  EXPECT_EQ(SumOfConstants({3.0F}), std::vector<double>{3.0});
  EXPECT_EQ(SumOfConstants({1e8F, 1.0F, -1e8F}), std::vector<double>{0.0});
  EXPECT_EQ(SumOfConstants({1e8F, -1e8F, 1.0F}), std::vector<double>{1.0});
  EXPECT_EQ(SumOfConstants({1e8F, 1.0F, -1e8F, 1.0F}), std::vector<double>{0.0});
  EXPECT_EQ(SumOfConstants({1e8F, 1.0F, 1.0F, -1e8F, 5.0F}), std::vector<double>{5.0});
  EXPECT_EQ(SumOfConstants({1.0F, 2.0F, 1e8F, 1.0F, -1e8F, 1.0F, 3.0F}), std::vector<double>{0.0});
}

TEST(BranchesLayer, RefusesBranchesThatDoNotFit) {
  TestDevice device;
  const auto prepare = [&](const std::vector<std::vector<LayerFactory>>& branches) {
    return Branches(branches)()->Prepare(LayerContext{device.device(), 3, Shape{5}}).status();
  };
  EXPECT_THAT(prepare({}), IsRefused("branches: needs at least one branch"));
  EXPECT_THAT(prepare({{Linear(4)}, {}}), IsRefused("branches: branch 1 needs at least one layer"));
  EXPECT_THAT(prepare({{Linear(4)}, {Linear(4), Linear(5)}}),
              IsRefused("branches: branch 0 turns [5] into [4], and branch 1 into [5]; the shapes "
                        "must be equal"));
  EXPECT_THAT(prepare({{Linear(4)}, {Linear(0)}}), IsRefused("branch 1: layer 1"));
}

// Returns y of a chain for x of ones.
std::vector<double> MaskOf(const std::vector<LayerFactory>& layers, const CallContext& call,
                           int first_index = 0) {
  constexpr int64_t kRows = 3, kFeatures = 200;
  TestDevice device;
  const Tensor x =
      device.Operand(Shape{kRows, kFeatures}, std::vector<float>(kRows * kFeatures, 1.0F));
  const Tensor y = device.Result(Shape{kRows, kFeatures});
  EXPECT_OK(device.Run([&](kernels::Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(
        Sequential chain,
        Sequential::Prepare(layers,
                            {.device = device.device(), .rows = kRows, .input = Shape{kFeatures}},
                            first_index));
    chain.LayOut({}, {});
    return chain.Forward({.stream = stream,
                          .call = call,
                          .x = x,
                          .y = y,
                          .stash = device.Workspace(chain.memory().stash_bytes),
                          .weight_stash = device.Workspace(chain.memory().weight_stash_bytes),
                          .workspace = device.Workspace(chain.memory().workspace_bytes)});
  }));
  return TestDevice::Values(y);
}

TEST(Dropout, IsTheIdentityInEvaluation) {
  EXPECT_EQ(MaskOf({Dropout(0.5F)}, {.is_training = false, .seed = 3}),
            std::vector<double>(600, 1.0));
}

TEST(Dropout, DependsOnTheSeedTheSampleAndThePlaceInTheModel) {
  const SampleNumbers numbers{.step = 1, .first_sample = 8}, next{.step = 1, .first_sample = 9};
  const CallContext call{.is_training = true, .seed = 3, .numbers = &numbers};
  CallContext other_seed = call, other_samples = call;
  other_seed.seed = 4;
  other_samples.numbers = &next;
  const LayerFactory half = Dropout(0.5F);
  const std::vector<double> mask = MaskOf({half}, call);
  EXPECT_EQ(MaskOf({half}, call), mask);
  EXPECT_NE(MaskOf({half}, other_seed), mask);
  EXPECT_NE(MaskOf({half}, call, /*first_index=*/1), mask);
  // The mask is counted from the next sample on.
  const std::vector<double> later = MaskOf({half}, other_samples);
  EXPECT_TRUE(std::equal(mask.begin() + 200, mask.end(), later.begin()));
}

TEST(Dropout, IsTheSameWhereverTheModelIsCut) {
  const SampleNumbers numbers;
  const CallContext call{.is_training = true, .seed = 3, .numbers = &numbers};
  const LayerFactory half = Dropout(0.5F);
  const std::vector<double> first = MaskOf({half}, call), second = MaskOf({half}, call, 1);
  std::vector<double> both;
  for (size_t i = 0; i < first.size(); ++i) both.push_back(first[i] * second[i]);
  EXPECT_EQ(MaskOf({half, half}, call), both);
}

// Two dropouts inside one layer, and the same ones inside another, all differ.
TEST(Dropout, InsideAnotherLayerIsOneOfItsOwn) {
  std::vector<uint64_t> streams;
  for (int outer = 0; outer < 50; ++outer) {
    streams.push_back(StreamOfLayer(0, outer));
    for (int inner = 0; inner < 50; ++inner) {
      streams.push_back(StreamOfLayer(StreamOfLayer(0, outer), inner));
    }
  }
  for (const uint64_t stream : streams) EXPECT_EQ(stream >> 61, 1U);
  std::sort(streams.begin(), streams.end());
  EXPECT_EQ(std::adjacent_find(streams.begin(), streams.end()), streams.end());
  const SampleNumbers numbers;
  const CallContext call{.is_training = true, .seed = 3, .numbers = &numbers};
  const LayerFactory half = Dropout(0.5F);
  // Residual computes y = x + mask x.
  std::vector<double> inner = MaskOf({Residual({half})}, call);
  for (double& value : inner) value -= 1.0;
  EXPECT_NE(inner, MaskOf({half}, call));
}

// Returns what an attention layer reports for samples of a shape.
absl::StatusOr<LayerSpec> PrepareAttention(const AttentionOptions& options, const Shape& sample) {
  TestDevice device;
  return Attention(options)()->Prepare(LayerContext{device.device(), /*rows=*/2, sample});
}

TEST(AttentionLayer, DerivesTheHeadSizeFromTheWidth) {
  const auto spec =
      PrepareAttention({.heads = 6, .kv_heads = 2, .rotary_base = 10.0F}, Shape{7, 40});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->output, (Shape{7, 24}));
  EXPECT_EQ(spec->description, "attention 6 x 4, 2 kv heads, rotary 10");
  EXPECT_EQ(spec->memory.stash_bytes, 2 * 6 * 7 * 4);
}

TEST(AttentionLayer, HasAsManyKvHeadsAsHeadsUnlessToldOtherwise) {
  const auto spec = PrepareAttention({.heads = 3}, Shape{7, 36});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->output, (Shape{7, 12}));
  EXPECT_EQ(spec->description, "attention 3 x 4");
}

TEST(AttentionLayer, RefusesSamplesThatHaveNoHeads) {
  for (const Shape& sample :
       {Shape{12}, Shape{2, 13}, Shape{2, 6}, Shape{2, 0}, Shape{1, 2, 12}, Shape{2, 25}}) {
    EXPECT_THAT(PrepareAttention({.heads = 4}, sample),
                IsRefused(AllOf(HasSubstr("attention"), HasSubstr("4 heads"),
                                HasSubstr(sample.ToString()))));
  }
}

TEST(AttentionLayer, RefusesHeadsThatMakeNoGroups) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const AttentionOptions& options :
       {AttentionOptions{.heads = 0}, AttentionOptions{.heads = -4},
        AttentionOptions{.heads = 6, .kv_heads = 4}, AttentionOptions{.heads = 2, .kv_heads = 4},
        AttentionOptions{.heads = 2, .kv_heads = -2}, AttentionOptions{.heads = kHuge},
        AttentionOptions{.heads = kHuge, .kv_heads = 1}}) {
    EXPECT_THAT(PrepareAttention(options, Shape{2, 24}), IsRefused("attention"))
        << options.heads << " " << options.kv_heads;
  }
}

TEST(AttentionLayer, RefusesAnOddHeadSizeWithARotaryBase) {
  EXPECT_THAT(PrepareAttention({.heads = 1, .rotary_base = 10.0F}, Shape{2, 9}),
              IsRefused("even, not 3"));
}

// Returns what Sequential::Prepare reports for layers 3, 4, ... of a model.
absl::Status PrepareFromLayerThree(const std::vector<LayerFactory>& layers) {
  TestDevice device;
  return device.Run([&](kernels::Stream&) {
    return Sequential::Prepare(layers, {device.device(), /*rows=*/3, Shape{5}}, /*first_index=*/3)
        .status();
  });
}

// Returns what Sequential::Prepare reports for layers that are fed ids.
absl::Status PrepareWithIds(const std::vector<LayerFactory>& layers, const Shape& input) {
  TestDevice device;
  return device.Run([&](kernels::Stream&) {
    const LayerContext context = {
        .device = device.device(), .rows = 3, .input = input, .vocabulary = 1};
    return Sequential::Prepare(layers, context, /*first_index=*/0).status();
  });
}

TEST(LayerShapes, AnEmbeddingTakesRowsOfIds) {
  const LayerFactory embedding = Embedding({.vocabulary = 7, .features = 5});
  EXPECT_OK(PrepareWithIds({embedding, Linear(2)}, Shape{4}));
  EXPECT_THAT(PrepareWithIds({embedding}, Shape{4, 2}),
              IsRefused(AllOf(HasSubstr("samples of one axis"), HasSubstr("[4, 2]"))));
  EXPECT_THAT(PrepareFromLayerThree({Linear(4), embedding}),
              IsRefused(AllOf(HasSubstr("layer 4"), HasSubstr("takes ids"))));
}

TEST(LayerShapes, ALayerThatDoesNotFitIsNamedWithTheReason) {
  const Refusal<std::vector<LayerFactory>> refusals[] = {
      {{Linear(4), Linear(0)}, AllOf(HasSubstr("layer 4"), HasSubstr("at least 1, not 0"))},
      {{Dropout(1.0F)}, AllOf(HasSubstr("layer 3: dropout"), HasSubstr("below 1"))},
      {{Linear(4), SwiGlu(), Linear(3), SwiGlu()},
       AllOf(HasSubstr("layer 6: swiglu"), HasSubstr("even"), HasSubstr("[3]"))},
      {{Linear(4), Residual({Linear(6)})},
       AllOf(HasSubstr("layer 4: residual"), HasSubstr("[4]"), HasSubstr("[6]"),
             HasSubstr("must be equal"))},
      {{Residual({LayerNorm(), Linear(0)})}, "layer 3: layer 1: linear"},
      {{Residual({})}, "layer 3: residual: needs at least one layer"},
  };
  ExpectRefusals(PrepareFromLayerThree, refusals);
}

TEST(LayerShapes, AnEmbeddingNeedsAVocabularyAndFeatures) {
  EXPECT_THAT(PrepareWithIds({Embedding({.features = 5})}, Shape{4}), IsRefused("0 words"));
  EXPECT_THAT(PrepareWithIds({Embedding({.vocabulary = 7})}, Shape{4}), IsRefused("0 features"));
}

}  // namespace
}  // namespace stagecoach::engine
