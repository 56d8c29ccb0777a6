#include "engine/data/formats/image_folder.h"

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/data/formats/load.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/image_files.h"
#include "engine/data/images/resize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

std::string PhotoFixture(const std::string& name) {
  return base::ReadFile(absl::StrCat(STAGECOACH_IMAGE_FIXTURES, "/", name), 1 << 20).value();
}

// Writes an image of the fixtures to FOLDER/PLACE.
void AddPhoto(const std::string& folder, const std::string& place,
              const std::string& fixture = "rgb.png") {
  std::filesystem::create_directories((std::filesystem::path(folder) / place).parent_path());
  WriteTestFile(folder, place, PhotoFixture(fixture));
}

// Five images of cats and five of dogs.
std::string Pets(const std::string& folder) {
  const char* const fixtures[] = {"rgb.png", "gray.jpg", "alpha.png", "rgb.jpg", "turned.png"};
  for (int i = 0; i < 5; ++i) {
    AddPhoto(folder, absl::StrCat("cat/", i, ".png"), fixtures[i]);
    AddPhoto(folder, absl::StrCat("dog/more/", i, ".JPG"), fixtures[4 - i]);
  }
  return folder;
}

std::vector<std::string> NamesOf(const Dataset& data) {
  std::vector<std::string> names;
  for (int64_t row = 0; row < data.rows(); ++row) names.push_back(data.NameOf(row));
  return names;
}

TEST(ImageFolder, LooksForImagesAmongTheFirstFilesOfEachSubfolder) {
  const std::string folder = TestDirectory();
  AddPhoto(folder, "cat/1.png");
  std::filesystem::create_directories(std::filesystem::path(folder) / "logs");
  for (int i = 0; i < 10'001; ++i) WriteTestFile(folder, absl::StrCat("logs/", i), "");
  std::vector<std::string> notices;
  const DataSource source = {
      .spec = folder, .image_size = 6, .on_notice = [&](const std::string& notice) {
        notices.push_back(notice);
      }};
  EXPECT_THAT(LoadData(source),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has 1 folder of images, expected at least 2, one per class; logs "
                                 "has no image among the first 10,000 files in it")));
  Pets(folder);
  EXPECT_OK(LoadData(source));
  EXPECT_THAT(notices, ::testing::Contains(HasSubstr("logs has no image among the first 10,000")));
}

TEST(ImageFolder, HoldsOutAShareByTheSeed) {
  const std::string folder = Pets(TestDirectory());
  ASSERT_TRUE(HoldsImageFolder(folder));
  EXPECT_TRUE(IsDivided({.spec = folder}));
  const auto data = LoadData({.spec = folder, .image_size = 6, .seed = 3});
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows(), 8);
  EXPECT_EQ(data->test->rows(), 2);
  EXPECT_EQ(data->train->spec().inputs.front().shape, (kernels::Shape{3, 6, 6}));
  EXPECT_THAT(data->encoding.class_names, ElementsAre("cat", "dog"));
  std::set<std::string> all;
  for (const Dataset* set : {data->train.get(), data->test.get()}) {
    for (int64_t row = 0; row < set->rows(); ++row) {
      const std::string name = set->NameOf(row);
      EXPECT_EQ(set->label(row), name.substr(0, 3) == "dog" ? 1 : 0);
      all.insert(name);
    }
  }
  EXPECT_EQ(all.size(), 10U);
  const auto again = LoadData({.spec = folder, .image_size = 6, .seed = 3});
  EXPECT_EQ(NamesOf(*again->test), NamesOf(*data->test));
}

TEST(ImageFolder, HasThePixelsOfItsFilesStandardized) {
  const std::string folder = TestDirectory();
  AddPhoto(folder, "train/b/1.png");
  AddPhoto(folder, "train/a/2.png", "alpha.png");
  AddPhoto(folder, "val/a/x.png", "gray.png");
  AddPhoto(folder, "test/b/y.png");
  EXPECT_FALSE(IsDivided({.spec = folder}));
  const auto data = LoadData({.spec = folder, .image_size = 5});
  ASSERT_OK(data);
  EXPECT_THAT(NamesOf(*data->train), ElementsAre("train/a/2.png", "train/b/1.png"));
  EXPECT_THAT(NamesOf(*data->test), ElementsAre("val/a/x.png"));
  const Image image = FitInto(*DecodeImage(PhotoFixture("rgb.png"), 3), 5, 5);
  const std::vector<float> features = FeaturesOf(*data->train, 1);
  double sum = 0.0;
  for (const int64_t row : {0, 1}) {
    for (const float value : FeaturesOf(*data->train, row)) sum += value;
  }
  EXPECT_NEAR(sum, 0.0, 1e-4);
  for (size_t place = 0; place < 25; ++place) {
    for (size_t channel = 0; channel < 3; ++channel) {
      const double pixel = image.pixels[3 * place + channel] / 255.0;
      EXPECT_NEAR(features[25 * channel + place],
                  (pixel - data->encoding.mean[0]) / data->encoding.stddev[0], 1e-5);
    }
  }
}

TEST(ImageFolder, TakesTheModelsInput) {
  const std::string folder = Pets(TestDirectory());
  const auto data = LoadData({.spec = folder, .model_input = kernels::Shape{1, 4, 7}});
  ASSERT_OK(data);
  EXPECT_EQ(data->train->spec().inputs.front().shape, (kernels::Shape{1, 4, 7}));
}

TEST(ImageFolder, HasTheSameSamplesWhetherTheyAreKeptOrNot) {
  const std::string folder = Pets(TestDirectory());
  ImageFolderOptions options;
  const auto kept = LoadImageFolder(folder, options);
  options.most_kept_bytes = 0;
  const auto streamed = LoadImageFolder(folder, options);
  ASSERT_OK(kept);
  ASSERT_OK(streamed);
  EXPECT_EQ(kept->encoding, streamed->encoding);
  const std::vector<int64_t> rows = {3, 0, 7, 5};
  streamed->train->WillRead(rows);
  for (const int64_t row : {3, 0, 7, 5, 1, 3}) {
    EXPECT_EQ(FeaturesOf(*kept->train, row), FeaturesOf(*streamed->train, row));
  }
  EXPECT_OK(streamed->train->ReadStatus());
  std::filesystem::remove_all(folder);
  FeaturesOf(*streamed->train, 2);
  EXPECT_THAT(streamed->train->ReadStatus(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder)));
  auto subset = Subset(streamed->train, 3);
  EXPECT_EQ((*subset)->ReadStatus(), streamed->train->ReadStatus());
  EXPECT_EQ((*subset)->NameOf(1), streamed->train->NameOf(1));
}

TEST(ImageFolder, RefusesOrSkipsBrokenImages) {
  const std::string folder = Pets(TestDirectory());
  WriteTestFile(folder, "cat/7.jpg", PhotoFixture("rgb.jpg").substr(0, 500));
  WriteTestFile(folder, "dog/8.png", "");
  DataSource source = {.spec = folder, .image_size = 4};
  EXPECT_THAT(LoadData(source),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("2 of 12 images cannot be read"),
                             HasSubstr("--skip-broken-images leaves out such images"))));
  std::vector<std::string> notices;
  source.skips_broken_images = true;
  source.on_notice = [&](const std::string& notice) { notices.push_back(notice); };
  const auto data = LoadData(source);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows() + data->test->rows(), 10);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("2 of 12 images cannot be read")));
  for (const Dataset* set : {data->train.get(), data->test.get()}) {
    for (int64_t row = 0; row < set->rows(); ++row) FeaturesOf(*set, row);
    EXPECT_OK(set->ReadStatus());
  }
}

TEST(ImageFolder, TellsOfImagesOfOtherKinds) {
  const std::string folder = Pets(TestDirectory());
  WriteTestFile(folder, "cat/z.webp", "RIFF");
  WriteTestFile(folder, "cat/notes.txt", "Tom");
  WriteTestFile(folder, "cat/.hidden.png", "no image");
  std::vector<std::string> notices;
  ASSERT_OK(LoadData({.spec = folder, .image_size = 4, .on_notice = [&](const std::string& text) {
                        notices.push_back(text);
                      }}));
  EXPECT_THAT(notices,
              ElementsAre(HasSubstr("1 image is neither PNG nor JPEG, and left out, such as "
                                    "cat/z.webp")));
}

TEST(ImageFolder, RefusesFoldersThatSayNoClasses) {
  const std::string folder = TestDirectory();
  AddPhoto(folder, "cat/1.png");
  EXPECT_THAT(LoadData({.spec = folder}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 1 folder of images")));
  AddPhoto(folder, "dog/1.png");
  AddPhoto(folder, "stray.png");
  EXPECT_THAT(LoadData({.spec = folder}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("stray.png: is in no subfolder that names its class")));
}

TEST(ImageFolder, PredictsImagesWithOrWithoutLabels) {
  const std::string folder = Pets(TestDirectory());
  const auto data = LoadData({.spec = folder, .image_size = 4});
  ASSERT_OK(data);
  DataSource source = {.spec = folder + "/cat", .image_size = 4};
  const auto cats = LoadSamples(source, data->encoding, 2);
  ASSERT_OK(cats);
  EXPECT_EQ((*cats)->spec().target.kind, TargetSpec::Kind::kNone);
  EXPECT_THAT(NamesOf(**cats), ElementsAre("0.png", "1.png", "2.png", "3.png", "4.png"));
  const auto one = LoadSamples({.spec = folder + "/cat/3.png", .image_size = 4}, data->encoding, 2);
  ASSERT_OK(one);
  EXPECT_THAT(NamesOf(**one), ElementsAre("3.png"));
  EXPECT_EQ(FeaturesOf(**one, 0), FeaturesOf(**cats, 3));
  EXPECT_THAT(LoadData({.spec = folder + "/cat/3.png"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is one image")));
  source.spec = folder;
  const auto all = LoadSamples(source, data->encoding, 2);
  ASSERT_OK(all);
  EXPECT_EQ(LabelsOf(**all), (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  AddPhoto(folder, "emu/1.png");
  EXPECT_THAT(LoadSamples(source, data->encoding, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("emu: is the folder of no class that is known; these are cat, "
                                 "dog")));
}

TEST(ImageFolder, CutsRandomBoxesInTraining) {
  const std::string folder = Pets(TestDirectory());
  const auto data =
      LoadData({.spec = folder, .image_size = 6, .augmentation = {.cuts_boxes = true}});
  const auto plain = LoadData({.spec = folder, .image_size = 6});
  ASSERT_OK(data);
  EXPECT_EQ(data->encoding, plain->encoding);
  const auto first = data->train->ForEpoch(1, 1), second = data->train->ForEpoch(1, 2);
  ASSERT_NE(first, nullptr);
  const auto again = data->train->ForEpoch(1, 1);
  again->WillRead({4, 5});
  for (int64_t row = 0; row < data->train->rows(); ++row) {
    EXPECT_EQ(FeaturesOf(*data->train, row), FeaturesOf(*plain->train, row));
    EXPECT_EQ(FeaturesOf(*first, row), FeaturesOf(*again, row));
    EXPECT_NE(FeaturesOf(*first, row), FeaturesOf(*second, row));
    EXPECT_EQ(first->label(row), plain->train->label(row));
  }
  EXPECT_OK(first->ReadStatus());
}

TEST(ImageFolder, HasSomeRowsOfEachClass) {
  const std::string folder = Pets(TestDirectory());
  const auto data = LoadData({.spec = folder, .image_size = 4, .train_rows = 4});
  ASSERT_OK(data);
  EXPECT_EQ(LabelsOf(*data->train), (std::vector<int32_t>{0, 0, 1, 1}));
}

TEST(ImageFolder, NeedsNoImagesForShapes) {
  const std::string folder = Pets(TestDirectory());
  WriteTestFile(folder, "cat/7.jpg", "broken");
  const auto data = LoadData({.spec = folder, .image_size = 4, .has_shapes_only = true});
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows() + data->test->rows(), 11);
}

}  // namespace
}  // namespace stagecoach::engine
