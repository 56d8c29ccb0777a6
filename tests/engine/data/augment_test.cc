#include "engine/data/augment.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "engine/data/formats/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// Images of 2 channels, 3 rows and 5 columns, whose values count up from 1.
std::shared_ptr<const Dataset> CountingImages(int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * 30));
  std::iota(values.begin(), values.end(), 1.0F);
  return *TableDataset::Create(kernels::Shape{2, 3, 5}, 2, values,
                               std::vector<int32_t>(static_cast<size_t>(rows), 1));
}

// Returns the image moved down and to the right, and flipped after that.
std::vector<float> Moved(const std::vector<float>& image, int64_t down, int64_t right, bool flips) {
  std::vector<float> moved(image.size(), 0.0F);
  for (int64_t c = 0; c < 2; ++c) {
    for (int64_t y = 0; y < 3; ++y) {
      for (int64_t x = 0; x < 5; ++x) {
        const int64_t from_y = y - down, from_x = (flips ? 4 - x : x) - right;
        if (from_y < 0 || from_y >= 3 || from_x < 0 || from_x >= 5) continue;
        moved[static_cast<size_t>((c * 3 + y) * 5 + x)] =
            image[static_cast<size_t>((c * 3 + from_y) * 5 + from_x)];
      }
    }
  }
  return moved;
}

TEST(Augmented, FlipsHalfOfTheImages) {
  const auto images = CountingImages(200);
  const auto data = *Augmented(images, {.flips = true});
  const auto epoch = data->ForEpoch(1, 3);
  int flipped = 0;
  for (int64_t row = 0; row < 200; ++row) {
    EXPECT_EQ(FeaturesOf(*data, row), FeaturesOf(*images, row)) << "the set itself is unchanged";
    const std::vector<float> own = FeaturesOf(*epoch, row);
    const bool is_flipped = own == Moved(FeaturesOf(*images, row), 0, 0, true);
    EXPECT_TRUE(is_flipped || own == FeaturesOf(*images, row));
    flipped += is_flipped ? 1 : 0;
  }
  EXPECT_GT(flipped, 70);
  EXPECT_LT(flipped, 130);
}

TEST(Augmented, ShiftsByUpToFourPixelsEachWay) {
  const auto images = CountingImages(400);
  const auto epoch = (*Augmented(images, {.flips = true, .shifts = true}))->ForEpoch(7, 1);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t row = 0; row < 400; ++row) {
    const std::vector<float> own = FeaturesOf(*epoch, row);
    const std::vector<float> image = FeaturesOf(*images, row);
    bool is_found = false;
    for (int64_t down = -4; down <= 4; ++down) {
      for (int64_t right = -4; right <= 4; ++right) {
        if (own != Moved(image, down, right, false) && own != Moved(image, down, right, true)) {
          continue;
        }
        seen.emplace(down, right);
        is_found = true;
      }
    }
    EXPECT_TRUE(is_found) << row;
  }
  EXPECT_EQ(seen.size(), 81U);
}

TEST(Augmented, DependsOnSeedEpochAndRowAlone) {
  const auto images = CountingImages(50);
  const auto data = *Augmented(images, {.flips = true, .shifts = true});
  const auto all_of = [&](uint64_t seed, int64_t epoch, const Dataset& set) {
    const auto own = set.ForEpoch(seed, epoch);
    std::vector<float> values;
    for (int64_t row = 29; row >= 0; --row) {
      const std::vector<float> features = FeaturesOf(*own, row);
      values.insert(values.end(), features.begin(), features.end());
    }
    return values;
  };
  const std::vector<float> first = all_of(1, 1, *data);
  EXPECT_EQ(all_of(1, 1, *data), first);
  EXPECT_EQ(all_of(1, 1, **Subset(data, 30)), first) << "--train-samples";
  EXPECT_NE(all_of(1, 2, *data), first);
  EXPECT_NE(all_of(2, 1, *data), first);
  EXPECT_EQ(data->ForEpoch(1, 1)->label(3), 1);
}

TEST(Augmented, IsForImages) {
  const std::string path = WriteTestFile(TestDirectory(), "a.csv", "x,label\n1,0\n2,1\n3,0\n4,1\n");
  EXPECT_THAT(LoadData({.spec = path, .augmentation = {.flips = true}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--augment is for images")));
  EXPECT_THAT(LoadData({.spec = path, .augmentation = {.cuts_boxes = true}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("resized-crop is for images of any size")));
}

}  // namespace
}  // namespace stagecoach::engine
