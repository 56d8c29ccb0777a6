#include <string>
#include <vector>

#include "engine/models/model_file.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::ElementsAre;

std::vector<std::string> DescribeLayers(const Model& model) {
  const ModelProfile profile = AnalyzeModel(model, {}).value();
  std::vector<std::string> names;
  for (const partition::LayerCost& layer : profile.layers) names.push_back(layer.name);
  return names;
}

TEST(ModelFileOfImages, ReadsLayersOfImages) {
  ASSERT_OK_AND_ASSIGN(const Model model, ParseModel(R"(
input = [1, 4, 5]

[[layer]]
type = "conv2d"
outputs = 4
kernel = 3
padding = 1
groups = 1

[[layer]]
type = "batch_norm"
epsilon = 1e-3

[[layer]]
type = "residual"
relu = true
layers = [{ type = "conv2d", outputs = 6, kernel = 1, stride = 2, bias = false }, { type = "relu" }]
shortcut = [{ type = "conv2d", outputs = 6, kernel = 1, stride = 2 }]

[[layer]]
type = "group_norm"
groups = 2

[[layer]]
type = "max_pool"

[[layer]]
type = "avg_pool"
kernel = 1

[[layer]]
type = "sequence"
layers = [{ type = "flatten" }, { type = "linear", outputs = 8 }]

[[layer]]
type = "linear"
outputs = "classes"
)",
                                                     /*features=*/20, /*classes=*/3));
  EXPECT_EQ(model.input, (Shape{1, 4, 5}));
  EXPECT_THAT(DescribeLayers(model),
              ElementsAre("conv2d 1 -> 4, kernel 3, padding 1", "batch norm 4, epsilon 0.001",
                          "residual(conv2d 4 -> 6, kernel 1, stride 2, no bias; relu | "
                          "conv2d 4 -> 6, kernel 1, stride 2; relu)",
                          "group norm 6, groups 2", "max pool 2, stride 2",
                          "average pool 1, stride 1", "flatten", "linear 6 -> 8", "linear 8 -> 3"));
}

TEST(ModelFileOfImages, HasTheShapeOfTheDataOrAllInOneRow) {
  const ModelData data = {.input = Shape{2, 2, 5}, .classes = 3};
  const std::string head = "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n";
  EXPECT_EQ(ParseModel("input = \"image\"\n[[layer]]\ntype = \"flatten\"\n" + head, data)->input,
            (Shape{2, 2, 5}));
  EXPECT_EQ(ParseModel(head, data)->input, Shape{20});
}

// The model's outputs are its channels.
TEST(ModelFileOfImages, CountsTheChannelsBehindAGlobalPoolAsOutputs) {
  const std::string toml =
      "input = \"image\"\n[[layer]]\ntype = \"conv2d\"\nkernel = 1\noutputs = 3\n"
      "[[layer]]\ntype = \"global_avg_pool\"\n";
  EXPECT_OK(ParseModel(toml, /*features=*/16, /*classes=*/3));
  EXPECT_THAT(ParseModel(toml, /*features=*/16, /*classes=*/4), IsRefused("layers give 3"));
}

TEST(ModelFileOfImages, RefusesAnInputThatTheDataDoesNotHave) {
  const Refusal<std::string> refusals[] = {
      {"input = [2, 3]", "1:1: $.input: has not as many elements"},
      {"input = [20, 1, 0]", "1:17: $.input[2]"},
      {"input = [1, 1, 4, 5]", "expected 1 to 3 extents"},
      {"input = \"image\"", "no square image of 1 or 3 channels"},
      {"input = \"picture\"", "expected a shape or \"image\""},
      {"[[layer]]\ntype = \"max_pool\"\nkernel = 0", "$.layer[0].kernel"},
  };
  const auto parse = [](const std::string& text) {
    return ParseModel(text + "\n[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n",
                      /*features=*/20, /*classes=*/3);
  };
  ExpectRefusals(parse, refusals);
}

}  // namespace
}  // namespace stagecoach::engine
