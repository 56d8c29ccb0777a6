#include "engine/data/formats/idx.h"

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kNotFound;
using absl::StatusCode::kResourceExhausted;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

std::string RandomBytes(uint64_t stream, int64_t count) {
  const base::RandomStream random(1, stream);
  std::string bytes(count, '\0');
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(random.Below(i, 256));
  return bytes;
}

TEST(IdxImages, RoundTripPlainAndCompressed) {
  const std::string directory = TestDirectory();
  const base::RandomStream random(2, 0);
  for (int i = 0; i < 20; ++i) {
    const uint32_t count = static_cast<uint32_t>(random.Below(3 * i, 9));
    const uint32_t height = static_cast<uint32_t>(random.Below(3 * i + 1, 9));
    const uint32_t width = static_cast<uint32_t>(random.Below(3 * i + 2, 9));
    const std::string pixels = RandomBytes(i, int64_t{count} * height * width);
    const std::string file = IdxFile({count, height, width}, pixels);
    for (const std::string& contents : {file, Gzip(file)}) {
      const auto images = ReadIdxImages(WriteTestFile(directory, "images", contents));
      ASSERT_OK(images);
      EXPECT_EQ(images->count, count);
      EXPECT_EQ(images->height, height);
      EXPECT_EQ(images->width, width);
      EXPECT_EQ(std::string(images->pixels.begin(), images->pixels.end()), pixels);
    }
  }
}

TEST(IdxLabels, RoundTrip) {
  const std::string path = WriteTestFile(TestDirectory(), "labels", IdxFile({3}, "\x01\xff\x07"));
  const auto labels = ReadIdxLabels(path);
  ASSERT_OK(labels);
  EXPECT_THAT(*labels, ElementsAre(1, 255, 7));
}

// Writes `contents` to a file and reads it as images.
absl::Status ReadAsImages(const std::string& contents, int64_t max_bytes = kMaxIdxBytes) {
  return ReadIdxImages(WriteTestFile(TestDirectory(), "images", contents), max_bytes).status();
}

TEST(IdxImages, RefuseWhatIsNoFileOfImages) {
  std::string of_doubles = IdxFile({1, 1, 1}, "x");
  of_doubles[2] = 0x0d;
  const uint32_t most = 0xffffffff;
  ExpectRefusals({
      {ReadIdxImages("/no/such/file"), "/no/such/file", kNotFound},
      {ReadAsImages("GIF89a"), "RefuseWhatIsNoFileOfImages/images: "},
      {ReadAsImages("GIF89a"), "starts with the bytes 47 49, expected 00 00"},
      {ReadAsImages(of_doubles), "IDX element type 0x0d, expected 0x08 (uint8)"},
      {ReadAsImages(IdxFile({1}, "x")), "1 dimensions, expected 3"},
      {ReadIdxLabels(WriteTestFile(TestDirectory(), "labels", IdxFile({1, 1, 1}, "x"))),
       "3 dimensions, expected 1"},
      {ReadAsImages(IdxFile({2, 2, 2}, "abcdefg")),
       "7 bytes after the header, expected 8 (2 x 2 x 2)", kDataLoss},
      {ReadAsImages(IdxFile({2, 2, 2}, "abcdefghi")),
       "9 bytes after the header, expected 8 (2 x 2 x 2): the file has trailing", kDataLoss},
      {ReadAsImages(IdxFile({most, most, most}, "x")),
       "declares 4294967295 x 4294967295 x 4294967295 elements, more than the limit of 1073741824 "
       "bytes"},
      {ReadAsImages(IdxFile({1, 1, 101}, "x"), 100),
       "1 x 1 x 101 elements, more than the limit of 100"},
      {ReadAsImages(IdxFile({1, 1, 5}, "abcde"), 20), "20", kResourceExhausted},
  });
}

TEST(IdxImages, RefuseEveryTruncation) {
  const std::string file = IdxFile({2, 2, 2}, "abcdefgh");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(ReadAsImages(file.substr(0, size)), StatusIs(kDataLoss, "truncated")) << size;
  }
}

TEST(IdxImages, RefuseATruncatedGzipFile) {
  const std::string compressed = Gzip(IdxFile({2, 2, 2}, "abcdefgh"));
  EXPECT_FALSE(ReadAsImages(compressed.substr(0, compressed.size() - 1)).ok());
}

TEST(IdxImages, AcceptAFileOfExactlyTheLimit) {
  EXPECT_OK(ReadAsImages(IdxFile({1, 1, 4}, "abcd"), 20));
}

TEST(IdxImages, SurviveRandomDamage) {
  const std::string file = IdxFile({3, 2, 2}, "abcdefghijkl");
  const std::string directory = TestDirectory();
  const base::RandomStream random(3, 0);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = file;
    damaged[random.Below(2 * i, damaged.size())] = static_cast<char>(random.Below(2 * i + 1, 256));
    const auto images = ReadIdxImages(WriteTestFile(directory, "images", damaged));
    if (images.ok()) {
      EXPECT_EQ(images->count * images->height * images->width, 12);
      EXPECT_EQ(images->pixels.size(), 12u);
    }
  }
}

// A directory of three training and two test images of 1 x 2 pixels in two classes.
class IdxDirectory : public ::testing::Test {
 protected:
  IdxDirectory() { WriteGoodFiles(); }

  void WriteGoodFiles() {
    Write("train-images-idx3-ubyte", IdxFile({3, 1, 2}, std::string("\0\xff\0\xff\0\xff", 6)));
    Write("train-labels-idx1-ubyte", IdxFile({3}, std::string("\0\1\0", 3)));
    Write("t10k-images-idx3-ubyte", IdxFile({2, 1, 2}, std::string("\0\0\xff\xff", 4)));
    Write("t10k-labels-idx1-ubyte", IdxFile({2}, std::string("\1\0", 2)));
  }

  void Write(const std::string& name, const std::string& contents) {
    WriteTestFile(directory_, name, contents);
  }

  const std::string directory_ = TestDirectory();
};

TEST_F(IdxDirectory, LoadsImagesAndLabels) {
  const auto data = LoadIdxDirectory(directory_);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->features(), 2);
  EXPECT_EQ(data->train->classes(), 2);
  EXPECT_THAT(LabelsOf(*data->train), ElementsAre(0, 1, 0));
  EXPECT_THAT(LabelsOf(*data->test), ElementsAre(1, 0));
}

TEST_F(IdxDirectory, StandardizesBothSetsByTheTrainingPixels) {
  const auto data = LoadIdxDirectory(directory_);
  ASSERT_OK(data);
  EXPECT_THAT(FeaturesOf(*data->train, 0), ElementsAre(-1, 1));
  EXPECT_THAT(FeaturesOf(*data->test, 0), ElementsAre(-1, -1));
  EXPECT_THAT(FeaturesOf(*data->test, 1), ElementsAre(1, 1));
}

TEST_F(IdxDirectory, TakesCompressedFilesWherePlainOnesAreMissing) {
  std::filesystem::remove(absl::StrCat(directory_, "/t10k-labels-idx1-ubyte"));
  Write("t10k-labels-idx1-ubyte.gz", Gzip(IdxFile({2}, std::string("\0\0", 2))));
  const auto data = LoadIdxDirectory(directory_);
  ASSERT_OK(data);
  EXPECT_THAT(LabelsOf(*data->test), ElementsAre(0, 0));
}

TEST_F(IdxDirectory, GivesItsTestImagesToPredictWithOrWithoutLabels) {
  const TrainTest data = LoadIdxDirectory(directory_).value();
  const auto load = [&](const std::string& path) {
    return LoadIdxImages(path, data.encoding, /*classes=*/2);
  };
  const std::string images = absl::StrCat(directory_, "/t10k-images-idx3-ubyte");
  const std::string labels = absl::StrCat(directory_, "/t10k-labels-idx1-ubyte");
  EXPECT_THAT(LabelsOf(*load(directory_).value()), ElementsAre(1, 0));
  std::filesystem::remove(labels);
  for (const std::string& path : {directory_, images}) {
    const auto unlabeled = load(path).value();
    ASSERT_EQ(unlabeled->rows(), 2);
    EXPECT_EQ(unlabeled->spec().target, TargetSpec{});
    for (int64_t row = 0; row < 2; ++row) {
      EXPECT_EQ(FeaturesOf(*unlabeled, row), FeaturesOf(*data.test, row));
    }
  }
  Write("t10k-labels-idx1-ubyte", IdxFile({2}, std::string("\1\2", 2)));
  EXPECT_THAT(load(directory_), IsRefused("is 2, expected 0 to 1"));
  Write("t10k-labels-idx1-ubyte", IdxFile({3}, std::string("\1\0\0", 3)));
  EXPECT_THAT(load(directory_), IsRefused("expected as many"));
  EXPECT_THAT(load(absl::StrCat(directory_, "/none")), StatusIs(kNotFound, "none"));
}

TEST_F(IdxDirectory, NamesAMissingFile) {
  for (const std::string name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                 "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::filesystem::rename(path, path + ".away");
    EXPECT_THAT(LoadIdxDirectory(directory_),
                StatusIs(kNotFound, absl::StrCat(directory_, ": neither ", name, " nor ", name,
                                                 ".gz is there")));
    std::filesystem::rename(path + ".away", path);
  }
}

TEST_F(IdxDirectory, RefusesWhatIsNone) {
  ExpectRefusals({
      {LoadIdxDirectory(directory_ + "/gone"), directory_ + "/gone: no such directory", kNotFound},
      {LoadIdxDirectory(directory_ + "/t10k-labels-idx1-ubyte"),
       directory_ + "/t10k-labels-idx1-ubyte: is not a directory"},
  });
}

TEST_F(IdxDirectory, RefusesFilesThatDoNotFitTogether) {
  struct File {
    std::string name, contents;
  };
  const auto with = [&](const std::vector<File>& files) {
    WriteGoodFiles();
    for (const File& file : files) Write(file.name, file.contents);
    return LoadIdxDirectory(directory_);
  };
  const auto with_train_labels = [&](const std::string& labels) {
    const auto count = static_cast<uint32_t>(labels.size());
    return with({{"train-labels-idx1-ubyte", IdxFile({count}, labels)}});
  };
  ExpectRefusals({
      {with_train_labels({'\0', '\1'}), AllOf(HasSubstr("train-images-idx3-ubyte holds 3 images"),
                                              HasSubstr("train-labels-idx1-ubyte holds 2 labels"))},
      {with_train_labels({'\0', '\0', '\0'}), "training set: fewer than 2 classes"},
      {with({{"t10k-images-idx3-ubyte", IdxFile({2, 2, 1}, "abcd")}}),
       "test images are 2 x 1, expected 1 x 2 as in the training set"},
      {with({{"t10k-labels-idx1-ubyte", IdxFile({2}, {'\0', '\2'})}}),
       "test set: label of row 1 is 2, expected 0 to 1"},
      {with({{"train-images-idx3-ubyte", IdxFile({3, 1, 2}, "aaaaaa")}}),
       "single shade cannot be standardized"},
      {with({{"t10k-images-idx3-ubyte", IdxFile({0, 1, 2}, "")},
             {"t10k-labels-idx1-ubyte", IdxFile({0}, "")}}),
       "0 images of 1 x 2, expected at least one pixel"},
  });
}

TEST(FashionMnist, MissingDirectoryNamesThePackage) {
  if (std::filesystem::exists(kFashionMnistDirectory)) {
    GTEST_SKIP() << kFashionMnistDirectory << " is installed";
  }
  EXPECT_THAT(LoadIdxDirectory(kFashionMnistDirectory),
              StatusIs(kNotFound, "apt-get install dataset-fashion-mnist"));
}

TEST(FashionMnist, HasItsKnownShapeAndStatistics) {
  if (!std::filesystem::exists(kFashionMnistDirectory)) {
    GTEST_SKIP() << kFashionMnistDirectory << " is not installed";
  }
  const auto data = LoadIdxDirectory(kFashionMnistDirectory);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows(), 60000);
  EXPECT_EQ(data->test->rows(), 10000);
  EXPECT_EQ(data->train->features(), 784);
  EXPECT_EQ(data->train->classes(), 10);
  const auto* images = dynamic_cast<const ImageDataset*>(data->train.get());
  ASSERT_NE(images, nullptr);
  EXPECT_NEAR(images->mean(), 0.2860, 5e-5);
  EXPECT_NEAR(images->stddev(), 0.3530, 5e-5);
}

}  // namespace
}  // namespace stagecoach::engine
