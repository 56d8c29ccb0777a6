#include "engine/models/presets.h"

#include <cstdint>
#include <string>

#include "engine/models/model_file.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;

struct Known {
  const char* name;
  int64_t side, classes;
  int64_t parameters;  // as torchvision counts them, or the published number for the small ones
};

// The numbers are the published ones. Nothing is allocated.
TEST(Presets, HaveTheParametersThatTheyAreKnownFor) {
  constexpr Known kKnown[] = {{"resnet18", 224, 1000, 11'689'512},
                              {"resnet50", 224, 1000, 25'557'032},
                              {"resnet18-small", 32, 10, 11'173'962},
                              {"resnet50-small", 32, 10, 23'520'842}};
  for (const Known& known : kKnown) {
    SCOPED_TRACE(known.name);
    const Preset* const preset = FindPreset(known.name);
    ASSERT_NE(preset, nullptr);
    ASSERT_OK_AND_ASSIGN(
        const Model model,
        ParseModel(preset->text(), /*features=*/3 * known.side * known.side, known.classes));
    EXPECT_EQ(model.input, (Shape{3, known.side, known.side}));
    ASSERT_OK_AND_ASSIGN(const ModelProfile profile, AnalyzeModel(model, {.micro_batch_rows = 1}));
    int64_t parameters = 0;
    for (const partition::LayerCost& layer : profile.layers) parameters += layer.parameters;
    EXPECT_EQ(parameters, known.parameters);
    EXPECT_EQ(profile.output, Shape{known.classes});
  }
  EXPECT_EQ(FindPreset("resnet19"), nullptr);
}

TEST(Presets, OfImagesTakeOtherSquareImages) {
  const std::string text = FindPreset("resnet18-small")->text();
  EXPECT_EQ(ParseModel(text, 28 * 28, 10)->input, (Shape{1, 28, 28}));
  EXPECT_THAT(ParseModel(text, 3 * 32 * 48, 10), IsRefused("no square image"));
}

}  // namespace
}  // namespace stagecoach::engine
