#include "engine/runtime/stage/profile.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/image/flatten.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/swiglu.h"
#include "engine/runtime/stage/layer_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/analytic.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;

// Returns the cost of the only layer of a model with 10 features, for micro-batches of 3 samples.
partition::LayerCost CostOfLayer(const LayerFactory& layer,
                                 const Optimizer& optimizer = Optimizer::AdamW()) {
  return AnalyzeModel({.input = Shape{10}, .layers = {layer}},
                      {.micro_batch_rows = 3, .optimizer = optimizer})
      .value()
      .layers.at(0);
}

TEST(AnalyzeModel, SizesALinearLayer) {
  const partition::LayerCost cost = CostOfLayer(Linear(7));
  EXPECT_EQ(cost.name, "linear 10 -> 7");
  EXPECT_EQ(cost.parameters, 77);
  // 280 bytes of weights take 320, 28 of biases 64; each has two states.
  EXPECT_EQ(cost.memory.parameter_bytes, 384);
  EXPECT_EQ(cost.memory.optimizer_bytes, 768);
  EXPECT_EQ(cost.memory.other_resident_bytes, 0);
  EXPECT_EQ(cost.memory.input_bytes, 120);
  EXPECT_EQ(cost.memory.output_bytes, 84);
  EXPECT_EQ(cost.memory.stash_bytes, 0);
  EXPECT_EQ(cost.memory.weight_stash_bytes, 0);
  EXPECT_EQ(cost.memory.gradient_stash_bytes, 0);
  EXPECT_EQ(cost.memory.input_last_use, LastUse::kBackwardWeight);
  EXPECT_EQ(cost.memory.output_last_use, LastUse::kForward);
  EXPECT_EQ(cost.memory.output_gradient_last_use, LastUse::kBackwardWeight);
}

TEST(AnalyzeModel, CountsThreeProductsOfALinearLayer) {
  EXPECT_EQ(CostOfLayer(Linear(7)).flops, 3 * (2.0 * 3 * 10 * 7));
}

// Memory-bound layers move half as many bytes in bfloat16, in half the time except for the launch
// cost.
TEST(AnalyzeModel, CountsTheBytesOfTheActivationsType) {
  const absl::Status has = stagecoach::testing::HasOnCpu(kernels::Precision::kBfloat16);
  if (!has.ok()) GTEST_SKIP() << has.message();
  const double overhead_ns = partition::DeviceSpeed().overhead_ns;
  for (const LayerFactory& layer :
       {LayerNorm(), Activate(Activation::kGelu), Flatten(), SwiGlu(), Dropout(0.5)}) {
    const auto forward_ns = [&](kernels::Precision precision) {
      return AnalyzeModel({.input = Shape{8192}, .layers = {layer}},
                          {.micro_batch_rows = 64, .device = {.precision = precision}})
                 .value()
                 .layers.at(0)
                 .forward_ns -
             overhead_ns;
    };
    EXPECT_NEAR(
        forward_ns(kernels::Precision::kBfloat16) / forward_ns(kernels::Precision::kFloat32), 0.5,
        1e-9);
  }
}

TEST(AnalyzeModel, CountsOneStateForSgd) {
  EXPECT_EQ(CostOfLayer(Linear(7), Optimizer::Sgd()).memory.optimizer_bytes, 384);
}

TEST(AnalyzeModel, StashesTheInputOfGelu) {
  const partition::LayerCost cost = CostOfLayer(Linear(7, Activation::kGelu));
  EXPECT_EQ(cost.name, "linear 10 -> 7, gelu");
  EXPECT_EQ(cost.memory.weight_stash_bytes, 128);
  EXPECT_EQ(cost.memory.output_gradient_last_use, LastUse::kBackwardInput);
}

TEST(AnalyzeModel, KeepsTheOutputOfRelu) {
  const partition::LayerCost cost = CostOfLayer(Linear(7, Activation::kRelu));
  EXPECT_EQ(cost.memory.weight_stash_bytes, 0);
  EXPECT_EQ(cost.memory.gradient_stash_bytes, 128);
  EXPECT_EQ(cost.memory.output_last_use, LastUse::kBackwardInput);
}

TEST(AnalyzeModel, SizesALayerNorm) {
  const partition::LayerCost cost = CostOfLayer(LayerNorm());
  EXPECT_EQ(cost.parameters, 20);
  EXPECT_EQ(cost.memory.parameter_bytes, 128);
  EXPECT_EQ(cost.memory.weight_stash_bytes, 64);  // mean and rstd of 3 samples
  EXPECT_EQ(cost.memory.output_bytes, 120);
}

TEST(AnalyzeModel, SizesAResidualLayerByItsInnerLayers) {
  const partition::LayerCost cost =
      CostOfLayer(Residual({LayerNorm(), Linear(10, Activation::kGelu)}));
  EXPECT_EQ(cost.parameters, 20 + 110);
  EXPECT_EQ(cost.memory.parameter_bytes, 128 + (448 + 64));
  // The stash holds the statistics, what lies between the two layers, and the input of GELU.
  EXPECT_EQ(cost.memory.weight_stash_bytes, 64 + 128 + 128);
}

// A loss that takes outputs of any shape, no targets and no scratch memory.
class LossOfAnything final : public Loss {
 public:
  absl::StatusOr<LossSpec> Prepare(const LossContext& /*context*/) override {
    return LossSpec{.description = "anything"};
  }
  absl::Status Compute(const LossArgs& /*args*/) override { return absl::OkStatus(); }
};

TEST(AnalyzeModel, ALossWithoutTargetsTakesNoWorkspace) {
  ASSERT_OK_AND_ASSIGN(
      const ModelProfile profile,
      AnalyzeModel({.input = Shape{10}, .layers = {Linear(7)}, .loss = LossOf<LossOfAnything>()},
                   {}));
  EXPECT_EQ(profile.loss_workspace_bytes, 0);
}

TEST(AnalyzeModel, LossesTakeClassesOfASampleOrOfEachOfItsPositions) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile one,
                       AnalyzeModel({.input = Shape{5}, .layers = {Linear(7)}}, {}));
  EXPECT_EQ(one.loss_spec.target, TargetSpec::ClassLabel(7));
  EXPECT_EQ(one.loss_spec.description, "softmax cross-entropy of 7 classes");
  ASSERT_OK_AND_ASSIGN(const ModelProfile several,
                       AnalyzeModel({.input = Shape{2, 5}, .layers = {Linear(7)}}, {}));
  EXPECT_EQ(several.loss_spec.target,
            (TargetSpec{.kind = TargetSpec::Kind::kClasses, .shape = Shape{2}, .classes = 7}));
  EXPECT_EQ(several.loss_spec.description,
            "softmax cross-entropy of 7 classes at each of 2 positions");
  EXPECT_DOUBLE_EQ(several.loss_spec.loss_of_guessing, std::log(7.0));
  EXPECT_THAT(AnalyzeModel({.input = Shape{2, 3, 5}, .layers = {Linear(7)}}, {}),
              IsRefused("softmax cross-entropy: takes one number a class, so outputs of "
                        "shape [classes] or [positions, classes], not [2, 3, 7]"));
}

TEST(AnalyzeModel, OnlyCrossEntropyIsALogarithmOfAPerplexity) {
  Model model = {.input = Shape{5}, .layers = {Linear(7)}};
  EXPECT_TRUE(AnalyzeModel(model, {}).value().loss_spec.is_log_likelihood);
  model.loss = MeanSquaredError();
  EXPECT_FALSE(AnalyzeModel(model, {}).value().loss_spec.is_log_likelihood);
}

TEST(AnalyzeModel, SizesTheLoss) {
  ASSERT_OK_AND_ASSIGN(
      const ModelProfile profile,
      AnalyzeModel({.input = Shape{10}, .layers = {Linear(7)}}, {.micro_batch_rows = 17}));
  EXPECT_EQ(profile.ends(5).loss_workspace_bytes, 320);  // 17 results of samples
  // Each of 5 has 17 labels and the terms; there are 5 pairs of doubles.
  EXPECT_EQ(profile.ends(5).loss_resident_bytes, 5 * 128 + 128);
}

TEST(AnalyzeModel, FollowsTheShapesThroughTheModel) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       AnalyzeModel({.input = Shape{2, 5},
                                     .layers = {LayerNorm(), Linear(7), Linear(3)},
                                     .loss = LossOf<LossOfAnything>()},
                                    {}));
  EXPECT_THAT(profile.inputs, ElementsAre(Shape{2, 5}, Shape{2, 5}, Shape{2, 7}));
  EXPECT_EQ(profile.output, (Shape{2, 3}));
  std::vector<int64_t> parameters;
  for (const partition::LayerCost& layer : profile.layers) parameters.push_back(layer.parameters);
  EXPECT_THAT(parameters, ElementsAre(10, 42, 24));
}

TEST(AnalyzeModel, NamesTheLayerThatDoesNotFit) {
  EXPECT_THAT(AnalyzeModel({.input = Shape{10}, .layers = {Linear(7), Residual({Linear(8)})}}, {}),
              IsRefused("layer 1: residual"));
}

TEST(AnalyzeModel, EstimatesATimeForEveryOperation) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       AnalyzeModel(SmallModel(), {.micro_batch_rows = 4}));
  for (const partition::LayerCost& layer : profile.layers) {
    EXPECT_GT(layer.forward_ns, 0.0) << layer.name;
    // No gradient is computed for the data.
    const bool is_first = &layer == &profile.layers.front();
    EXPECT_EQ(layer.backward_input_ns > 0.0, !is_first) << layer.name;
    EXPECT_GT(layer.backward_weight_ns, 0.0) << layer.name;
    EXPECT_GT(layer.step_ns, 0.0) << layer.name;
  }
}

TEST(AnalyzeProfile, HasTheLayersOfEverySize) {
  const std::vector<int64_t> rows = {1, 5, 64};
  const Optimizer optimizer = Optimizer::Sgd();
  ASSERT_OK_AND_ASSIGN(const partition::Profile profile,
                       AnalyzeProfile(SmallModel(), "small", rows,
                                      {.optimizer = optimizer, .device = {.threads = 2}}));
  EXPECT_EQ(profile.model, "small");
  EXPECT_TRUE(profile.is_chain());
  EXPECT_OK(CheckProfile(profile));
  ASSERT_EQ(profile.sizes.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(ModelProfile alone,
                         AnalyzeModel(SmallModel(), {.micro_batch_rows = rows[i],
                                                     .optimizer = optimizer,
                                                     .device = {.threads = 2}}));
    for (size_t layer = 0; layer < alone.layers.size(); ++layer) {
      alone.layers[layer].name = profile.sizes[i].layers[layer].name;
    }
    EXPECT_EQ(profile.sizes[i].micro_batch_rows, rows[i]);
    EXPECT_EQ(profile.sizes[i].layers, alone.layers);
    EXPECT_EQ(profile.sizes[i].loss_workspace_bytes, alone.loss_workspace_bytes);
    EXPECT_EQ(profile.sizes[i].loss_bytes_per_micro_batch, alone.loss_bytes_per_micro_batch);
  }
}

TEST(AnalyzeProfile, CallsLayersByTheirKindAndIndex) {
  ASSERT_OK_AND_ASSIGN(
      const partition::Profile profile,
      AnalyzeProfile({.input = Shape{10},
                      .layers = {LayerNorm(), Linear(10), Residual({Linear(10)}), Linear(10)}},
                     "m", {1}, {}));
  std::vector<std::string> names;
  for (const partition::LayerCost& layer : profile.sizes[0].layers) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("layer_norm.0", "linear.1", "residual.2", "linear.3"));
}

}  // namespace
}  // namespace stagecoach::engine
