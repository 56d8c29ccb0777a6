#include <cstdint>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "engine/nn/layer.h"
#include "engine/stagecoach.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<LayerSpec> Prepared(const LayerFactory& factory, const Shape& sample,
                                   int64_t rows = 2) {
  TestDevice device;
  ASSIGN_OR_RETURN(PreparedLayer prepared, PrepareLayer(factory, {.device = device.device(),
                                                                  .rows = rows,
                                                                  .input = sample,
                                                                  .optimizer_states = 2}));
  return std::move(prepared.spec);
}

TEST(ImageLayers, RefuseSamplesThatAreNoImages) {
  for (const LayerFactory& layer : {Conv2d({.outputs = 1}), MaxPool({}), AvgPool({}),
                                    GlobalAvgPool(), GroupNorm(1), BatchNorm()}) {
    EXPECT_THAT(Prepared(layer, Shape{12}),
                IsRefused("takes images of shape [channels, height, width], not samples of [12]"));
  }
}

TEST(ImageLayers, RefuseOptionsThatFitNoImage) {
  const Shape image{3, 4, 4};
  for (const LayerFactory& layer :
       {Conv2d({.outputs = 2, .kernel = 5}), Conv2d({.outputs = 2, .groups = 2}), Conv2d({}),
        MaxPool({.kernel = 5}), AvgPool({.kernel = 2, .padding = 2}), GroupNorm(2)}) {
    EXPECT_THAT(Prepared(layer, image), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(Prepared(BatchNorm({.momentum = 0.0F}), image), IsRefused("momentum"));
}

TEST(ImageLayers, RefuseToNormalizeOneElementAlone) {
  EXPECT_THAT(Prepared(BatchNorm(), Shape{3, 1, 1}, /*rows=*/1), IsRefused("larger micro-batches"));
  EXPECT_OK(Prepared(BatchNorm(), Shape{3, 1, 1}, /*rows=*/2));
  EXPECT_THAT(Prepared(GroupNorm(3), Shape{3, 1, 1}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ImageLayers, GiveTheShapesOfTheirWindows) {
  const Shape image{4, 9, 7};
  EXPECT_EQ(Prepared(Conv2d({.outputs = 6, .kernel = 3, .stride = 2, .padding = 1}), image)->output,
            (Shape{6, 5, 4}));
  EXPECT_EQ(Prepared(MaxPool({}), image)->output, (Shape{4, 4, 3}));
  EXPECT_EQ(Prepared(AvgPool({.kernel = 3, .stride = 1}), image)->output, (Shape{4, 7, 5}));
  EXPECT_EQ(Prepared(GlobalAvgPool(), image)->output, (Shape{4}));
  EXPECT_EQ(Prepared(Flatten(), image)->output, (Shape{252}));
}

TEST(ResidualWithShortcut, NamesItsParametersAndRefusesOtherShapes) {
  const Shape image{2, 4, 4};
  const LayerFactory conv = Conv2d({.outputs = 3, .stride = 2, .has_bias = false});
  const auto spec = Prepared(Residual({conv, Relu(), Conv2d({.outputs = 3})}, {conv}), image);
  ASSERT_OK(spec);
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : spec->parameters) names.push_back(parameter.name);
  EXPECT_THAT(names, ElementsAre("0.weight", "2.weight", "2.bias", "shortcut.0.weight"));
  EXPECT_THAT(Prepared(Residual({conv}), image),
              IsRefused(AllOf(HasSubstr("[2, 4, 4] into [3, 2, 2]"), HasSubstr("must be equal"))));
  EXPECT_THAT(Prepared(Residual({conv}, {GlobalAvgPool()}), image), IsRefused("shortcut into [2]"));
}

// Averages have gradients, for which memory is planned, but no optimizer state.
TEST(BatchNorm, HasAveragesWithoutOptimizerState) {
  const auto spec = Prepared(BatchNorm({.momentum = 0.25F}), Shape{16, 4, 4});
  ASSERT_OK(spec);
  std::vector<bool> averages;
  for (const ParameterSpec& parameter : spec->parameters) {
    averages.push_back(parameter.update.is_average());
    EXPECT_FALSE(parameter.decays) << parameter.name;
  }
  EXPECT_THAT(averages, ElementsAre(false, false, true, true));
  EXPECT_EQ(spec->parameters[2].update, UpdateRule::MovingAverage(0.25F));
  EXPECT_EQ(spec->memory.parameter_bytes, 4 * 64);
  EXPECT_EQ(spec->memory.averaged_bytes, 2 * 64);
  EXPECT_EQ(spec->memory.optimizer_bytes, 2 * 2 * 64);
}

// The output is y of x for a mean of 1 and a variance of 4.
TEST(BatchNorm, UsesItsAveragesInEvaluation) {
  TestDevice device;
  const Shape shape{2, 1, 1, 2};
  const Tensor y = device.Result(shape);
  ASSERT_OK(device.Run([&](kernels::Stream& stream) -> absl::Status {
    const std::unique_ptr<Layer> layer = BatchNorm({.epsilon = 5.0F})();
    RETURN_IF_ERROR(
        layer->Prepare({.device = device.device(), .rows = 2, .input = Shape{1, 1, 2}}).status());
    const Shape one{1};
    const std::vector<Tensor> parameters = {
        device.Operand(one, {6.0F}), device.Operand(one, {0.5F}), device.Operand(one, {1.0F}),
        device.Operand(one, {4.0F})};
    return layer->Forward({.stream = stream,
                           .x = device.Operand(shape, {1.0F, 2.0F, 0.0F, 4.0F}),
                           .y = y,
                           .parameters = parameters});
  }));
  EXPECT_THAT(TestDevice::Values(y), ElementsAre(0.5, 2.5, -1.5, 6.5));
}

}  // namespace
}  // namespace stagecoach::engine
