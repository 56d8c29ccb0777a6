#include "engine/nn/skips.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::Shape;

constexpr int kLayersOfSkips = 12;

struct SkippingModel {
  std::vector<Skip> list;
  std::vector<Shape> outputs;
  Skips skips;
};

SkippingModel RandomSkips(std::mt19937& random) {
  SkippingModel model;
  for (int to = 2; to < kLayersOfSkips; ++to) {
    if (random() % 3 == 0) continue;
    model.list.push_back({static_cast<int>(random() % static_cast<unsigned>(to - 1)), to});
  }
  std::shuffle(model.list.begin(), model.list.end(), random);
  model.skips = Skips::Create(model.list, kLayersOfSkips, 3, kernels::DType::kFloat32).value();
  for (int layer = 0; layer < kLayersOfSkips; ++layer) {
    model.outputs.push_back(Shape{1 + static_cast<int64_t>(random() % 40)});
    model.skips.SetOutput(layer, model.outputs.back());
  }
  return model;
}

// No two skips that exist at the same time overlap, in the area or in bundles, and the size
// reported to the planner is enough.
TEST(Skips, HaveRoomOfTheirOwnWhereverTheCutIs) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 200; ++trial) {
    const SkippingModel model = RandomSkips(random);
    for (int layer = 1; layer < kLayersOfSkips; ++layer) {
      const Shape& input = model.outputs[static_cast<size_t>(layer) - 1];
      const Shape& output = model.outputs[static_cast<size_t>(layer)];
      for (const bool is_cut : {false, true}) {
        const int last = is_cut ? layer : kLayersOfSkips;
        partition::LayerMemory memory;
        memory.output_bytes = BoundaryTensors({output}, 3, kernels::DType::kFloat32).bytes();
        model.skips.AddTo(layer, input, output, memory);
        int64_t end = is_cut ? memory.output_bytes : 0;
        const int64_t size =
            is_cut ? memory.output_bytes + memory.passing_bytes : memory.skip_area_bytes;
        std::vector<std::pair<int64_t, int64_t>> places;
        for (const Skips::Relay& passage : model.skips.PassagesAt(
                 {.layer = layer, .first = 0, .last = last, .input = input, .output = output})) {
          if (!passage.after.has_value()) continue;
          EXPECT_EQ(passage.after->is_in_area, !is_cut);
          EXPECT_EQ(passage.after->offset % partition::kTensorAlignment, 0);
          places.emplace_back(passage.after->offset, 12 * passage.sample.elements());
        }
        std::sort(places.begin(), places.end());
        for (const auto& [offset, bytes] : places) {
          EXPECT_GE(offset, end);
          end = offset + bytes;
        }
        EXPECT_LE(end, size);
        const auto passing =
            std::count_if(model.list.begin(), model.list.end(),
                          [&](const Skip& skip) { return skip.from <= layer && layer < skip.to; });
        EXPECT_EQ(static_cast<int64_t>(places.size()), passing);
      }
    }
  }
}

// A stage copies a skip where it enters and leaves, and nowhere between.
TEST(Skips, StayWithinAStage) {
  Skips skips = Skips::Create(std::vector<Skip>{{0, 6}}, 8, 2, kernels::DType::kFloat32).value();
  for (int layer = 0; layer < 8; ++layer) skips.SetOutput(layer, Shape{4});
  std::vector<int> moved_at;
  for (int layer = 2; layer <= 5; ++layer) {
    const auto passages = skips.PassagesAt(
        {.layer = layer, .first = 2, .last = 5, .input = Shape{4}, .output = Shape{4}});
    ASSERT_EQ(passages.size(), 1u);
    if (!passages.front().stays()) moved_at.push_back(layer);
  }
  EXPECT_THAT(moved_at, ::testing::ElementsAre(2, 5));
  EXPECT_EQ(skips.ReadBy(6), Shape{4});
  EXPECT_EQ(skips.ReadBy(5), std::nullopt);
}

}  // namespace
}  // namespace stagecoach::engine
