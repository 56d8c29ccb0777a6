#include "engine/data/dataset.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;

std::shared_ptr<const TableDataset> ThreeRows() {
  return *TableDataset::Create({2}, 2, {1, 2, 3, 4, 5, 6}, {0, 1, 0});
}

TEST(TableDataset, ReportsItsShape) {
  const auto table = ThreeRows();
  EXPECT_EQ(table->rows(), 3);
  EXPECT_EQ(table->features(), 2);
  EXPECT_EQ(table->classes(), 2);
}

TEST(TableDataset, ReturnsEachRowAndLabel) {
  const auto table = ThreeRows();
  EXPECT_THAT(FeaturesOf(*table, 0), ElementsAre(1, 2));
  EXPECT_THAT(FeaturesOf(*table, 2), ElementsAre(5, 6));
  EXPECT_THAT(LabelsOf(*table), ElementsAre(0, 1, 0));
}

TEST(TableDataset, HasNoTargetsWithoutClasses) {
  const auto table = TableDataset::Create({2}, 0, {1, 2, 3, 4}, {}).value();
  EXPECT_EQ(table->rows(), 2);
  EXPECT_EQ(table->spec().target, TargetSpec{});
  EXPECT_THAT(FeaturesOf(*table, 1), ElementsAre(3, 4));
  table->CopyTarget(1, {});
}

TEST(TableDataset, RefusesWhatIsNoTable) {
  const auto create = TableDataset::Create;
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefusals({
      {create({2}, 2, {}, {}), "no rows"},
      {create({2}, 0, {}, {}), "no rows"},
      {create({0}, 2, {}, {0, 1}), "0 features a row, expected at least one"},
      {create({1}, 1, {1}, {0}), "fewer than 2 classes (1)"},
      {create({1}, 0, {1}, {0}), "fewer than 2 classes (0)"},
      {create({2}, 2, {1, 2, 3}, {0, 1}), "3 values, expected 2 labels x 2 features"},
      {create({2}, 2, {1, 2, 3, 4, 5, 6}, {0, 1}), "6 values, expected 2 labels x 2 features"},
      {create({2}, 0, {1, 2, 3}, {}), "3 values, expected 2 a row"},
      {create({1}, 2, {1, 2}, {0, 2}), "label of row 1 is 2, expected 0 to 1"},
      {create({1}, 2, {1, 2}, {-1, 0}), "label of row 0 is -1, expected 0 to 1"},
      {create({2}, 2, {1, 2, 3, infinity}, {0, 1}), "value of row 1, feature 1 is inf"},
      {create({2}, 2, {nan, 2, 3, 4}, {0, 1}), "value of row 0, feature 0 is nan"},
  });
}

TEST(TableDatasetDeathTest, AbortsOnARowOutsideTheSet) {
  const auto table = ThreeRows();
  EXPECT_DEATH(table->label(3), "row 3 of a set of 3 rows");
  EXPECT_DEATH(table->label(-1), "row -1 of a set of 3 rows");
  EXPECT_DEATH(FeaturesOf(*table, 3), "row 3 of a set of 3 rows");
}

TEST(TableDatasetDeathTest, AbortsOnASpanOfTheWrongLength) {
  const auto table = ThreeRows();
  std::vector<float> out(3);
  EXPECT_DEATH(table->CopyNumbers(0, 0, absl::MakeSpan(out)), "room for 3 floats, expected 2");
}

TEST(LabeledByNumbers, HasOneOrSeveralNumbersForEachRow) {
  const auto samples = [] { return TableDataset::Create({1}, 0, {1.0F, 2.0F}, {}).value(); };
  ASSERT_OK_AND_ASSIGN(const auto one, LabeledByNumbers(samples(), {5.0F, 6.0F}));
  EXPECT_EQ(one->number(1), 6.0F);
  ASSERT_OK_AND_ASSIGN(const auto two,
                       LabeledByNumbers(samples(), {5.0F, 6.0F, 7.0F, 8.0F}, /*labels=*/2));
  EXPECT_EQ(two->spec().target, (TargetSpec{TargetSpec::Kind::kValues, kernels::Shape{2}}));
  std::vector<float> targets(2);
  two->CopyTarget(1, absl::MakeSpan(reinterpret_cast<std::byte*>(targets.data()), 8));
  EXPECT_EQ(targets, (std::vector<float>{7.0F, 8.0F}));
  EXPECT_THAT(LabeledByNumbers(samples(), {5.0F, 6.0F}, 2), IsRefused("2 labels, expected 4"));
  EXPECT_THAT(LabeledByNumbers(samples(), {5.0F, 6.0F, 7.0F, std::nanf("")}, 2),
              IsRefused("label of row 1 is nan"));
}

TEST(ImageDataset, StandardizesEveryPixelValue) {
  std::vector<uint8_t> pixels(256);
  for (int v = 0; v < 256; ++v) pixels[v] = static_cast<uint8_t>(v);
  const auto images = *ImageDataset::Create({128}, 2, 0.25, 0.5, pixels, {0, 1});
  for (int v = 0; v < 256; ++v) {
    EXPECT_FLOAT_EQ(FeaturesOf(*images, v / 128)[v % 128], (v / 255.0 - 0.25) / 0.5) << v;
  }
}

TEST(ImageDataset, KeepsPixelsAsBytes) {
  const auto images = *ImageDataset::Create({2}, 3, 0, 1, {1, 2, 3, 255}, {2, 0});
  ASSERT_EQ(images->spec().inputs.front().type, kernels::DType::kUint8);
  std::vector<std::byte> bytes(2);
  images->CopyInput(0, 1, absl::MakeSpan(bytes));
  EXPECT_THAT(bytes, ElementsAre(std::byte{3}, std::byte{255}));
}

TEST(ImageDataset, ReportsItsShapeAndLabels) {
  const auto images = *ImageDataset::Create({2}, 3, 0, 1, {1, 2, 3, 4}, {2, 0});
  EXPECT_EQ(images->rows(), 2);
  EXPECT_EQ(images->features(), 2);
  EXPECT_EQ(images->classes(), 3);
  EXPECT_THAT(LabelsOf(*images), ElementsAre(2, 0));
}

TEST(ImageDataset, RefusesPixelsThatDoNotFillTheRows) {
  EXPECT_THAT(ImageDataset::Create({2}, 2, 0, 1, {1, 2, 3}, {0, 1}),
              IsRefused("3 values, expected 2 labels x 2 features"));
}

TEST(ImageDataset, RefusesStatisticsThatCannotStandardize) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [mean, stddev] : {std::pair{0.5, 0.0}, {0.5, -1.0}, {0.5, nan}, {nan, 1.0}}) {
    EXPECT_THAT(ImageDataset::Create({1}, 2, mean, stddev, {1, 2}, {0, 1}),
                IsRefused("expected finite numbers"));
  }
}

TEST(Subset, IsTheFirstRows) {
  const auto subset = *Subset(ThreeRows(), 2);
  EXPECT_EQ(subset->rows(), 2);
  EXPECT_EQ(subset->features(), 2);
  EXPECT_EQ(subset->classes(), 2);
  EXPECT_THAT(FeaturesOf(*subset, 1), ElementsAre(3, 4));
  EXPECT_THAT(LabelsOf(*subset), ElementsAre(0, 1));
}

TEST(SpreadSubset, IsSpreadOverAllRows) {
  const auto rows_of = [](int64_t whole, int64_t rows) {
    std::vector<float> values(static_cast<size_t>(whole));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const auto subset = *SpreadSubset(*TableDataset::Create({1}, 0, std::move(values), {}), rows);
    std::vector<float> taken;
    for (int64_t row = 0; row < subset->rows(); ++row) taken.push_back(FeaturesOf(*subset, row)[0]);
    return taken;
  };
  EXPECT_THAT(rows_of(10, 4), ElementsAre(0, 2, 5, 7));
  EXPECT_THAT(rows_of(4, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rows_of(5, 1), ElementsAre(0));
  EXPECT_THAT(SpreadSubset(ThreeRows(), 4), IsRefused("asked for 4 rows of a set that has 3"));
}

TEST(Subset, RefusesMoreRowsThanThereAreAndNone) {
  ExpectRefusals({
      {Subset(ThreeRows(), 4), "asked for 4 rows of a set that has 3"},
      {Subset(ThreeRows(), 0), "asked for 0 rows"},
      {Subset(ThreeRows(), -1), "asked for -1 rows"},
  });
}

TEST(SubsetDeathTest, AbortsOnARowBeyondTheSubset) {
  const auto subset = *Subset(ThreeRows(), 2);
  EXPECT_DEATH(subset->label(2), "row 2 of a set of 2 rows");
  EXPECT_DEATH(FeaturesOf(*subset, 2), "row 2 of a set of 2 rows");
}

}  // namespace
}  // namespace stagecoach::engine
