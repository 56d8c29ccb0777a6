#include "engine/data/formats/arrays.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/system/file.h"
#include "engine/data/formats/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/engine/data/token_files.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kNotFound;
using kernels::Shape;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

std::string Array(const std::string& type, const std::vector<int64_t>& shape,
                  const std::string& elements, const std::string& fortran = "False") {
  return NpyFile(absl::StrCat("{'descr': '", type, "', 'fortran_order': ", fortran, ", 'shape': (",
                              absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }"),
                 elements);
}

template <typename T>
std::string Elements(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Writes two training images of 3 channels with 1 x 2 pixels, and one test image.
std::string Images() {
  const std::string directory = TestDirectory();
  WriteTestFile(directory, "x_train.npy",
                Array("|u1", {2, 3, 1, 2}, std::string("\0\xFF\0\0\0\0\xFF\xFF\0\0\0\xFF", 12)));
  WriteTestFile(directory, "y_train.npy", Array("<i8", {2}, Elements<int64_t>({2, 0})));
  WriteTestFile(directory, "x_test.npy", Array("|u1", {1, 3, 1, 2}, std::string(6, '\xFF')));
  WriteTestFile(directory, "y_test.npy", Array("|u1", {1}, "\1"));
  return directory;
}

std::string Numbers() {
  const std::string directory = TestDirectory();
  WriteTestFile(directory, "x_train.npy",
                Array("<f4", {2, 3}, Elements<float>({0.5F, -1, 2, 3, 4, 5})));
  WriteTestFile(directory, "y_train.npy", Array("<i4", {2}, Elements<int32_t>({0, 1})));
  WriteTestFile(directory, "x_test.npy", Array("<f8", {1, 3}, Elements<double>({0.25, 7, -8})));
  WriteTestFile(directory, "y_test.npy", Array("<u2", {1}, Elements<uint16_t>({1})));
  return directory;
}

TEST(Arrays, PixelsAreStandardizedAsThoseOfTheTrainingSet) {
  const std::string directory = Images();
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData({.spec = directory}));
  EXPECT_EQ(data.train->rows(), 2);
  EXPECT_EQ(data.train->features(), 6);
  EXPECT_EQ(data.train->classes(), 3);
  EXPECT_THAT(LabelsOf(*data.train), ElementsAre(2, 0));
  EXPECT_THAT(LabelsOf(*data.test), ElementsAre(1));
  // 4 of 12 values are white.
  const auto white = static_cast<float>((1.0 - 1.0 / 3) / std::sqrt(2.0 / 9));
  const auto black = static_cast<float>((0.0 - 1.0 / 3) / std::sqrt(2.0 / 9));
  EXPECT_THAT(
      FeaturesOf(*data.train, 0),
      ::testing::Pointwise(::testing::FloatEq(), {black, white, black, black, black, black}));
  EXPECT_THAT(FeaturesOf(*data.test, 0), ::testing::Each(::testing::FloatEq(white)));
  ASSERT_EQ(data.encoding.mean.size(), 1);
}

TEST(Arrays, NumbersAreFedAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData({.spec = Numbers()}));
  EXPECT_THAT(FeaturesOf(*data.train, 0), ElementsAre(0.5F, -1, 2));
  EXPECT_THAT(FeaturesOf(*data.train, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(FeaturesOf(*data.test, 0), ElementsAre(0.25F, 7, -8));
  EXPECT_EQ(data.encoding, DataEncoding());
}

TEST(Arrays, ArePredictedAsTheyWereTrained) {
  const std::string directory = Images();
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadArrays(directory));
  ASSERT_OK_AND_ASSIGN(const auto samples,
                       LoadSamples({.spec = directory}, data.encoding, data.train->classes()));
  EXPECT_EQ(FeaturesOf(*samples, 0), FeaturesOf(*data.test, 0));
  EXPECT_EQ(LabelsOf(*samples), LabelsOf(*data.test));
  // Training files are missing, and then labels.
  for (const char* name : {"x_train", "y_train", "y_test"}) {
    ASSERT_EQ(std::remove(absl::StrCat(directory, "/", name, ".npy").c_str()), 0);
  }
  ASSERT_OK_AND_ASSIGN(const auto unlabeled,
                       LoadSamples({.spec = directory}, data.encoding, data.train->classes()));
  EXPECT_EQ(FeaturesOf(*unlabeled, 0), FeaturesOf(*data.test, 0));
  EXPECT_EQ(unlabeled->classes(), 0);
  EXPECT_THAT(LoadSamples({.spec = directory}, DataEncoding(), 3),
              StatusIs(kFailedPrecondition, "not trained on pixels"));
}

TEST(Arrays, NumbersAreNotForAModelOfOtherData) {
  const std::string directory = Numbers();
  EXPECT_OK(LoadSamples({.spec = directory}, DataEncoding(), 2));
  for (const DataEncoding& other :
       {DataEncoding{.mean = {0.5}, .stddev = {1}}, DataEncoding{.vocabulary = 9},
        DataEncoding{.columns = {"a", "b", "c"}}}) {
    EXPECT_THAT(LoadSamples({.spec = directory}, other, 2),
                StatusIs(kFailedPrecondition, "not trained on numbers"));
  }
}

TEST(Arrays, HaveLabelsThatAreNumbersIfAskedTo) {
  for (const std::string& labels : {Array("<f8", {2}, Elements<double>({1.5, -2.5})),
                                    Array("<f4", {2}, Elements<float>({1.5F, -2.5F}))}) {
    const std::string directory = Images();
    WriteTestFile(directory, "y_train.npy", labels);
    WriteTestFile(directory, "y_test.npy", Array("<i4", {1}, Elements<int32_t>({-3})));
    EXPECT_THAT(LoadArrays(directory), IsRefused("--loss mse"));
    ASSERT_OK_AND_ASSIGN(const TrainTest data,
                         LoadArrays(directory, {.labels = LabelKind::kNumbers}));
    EXPECT_EQ(data.encoding.label_mean, std::vector<double>{-0.5});
    EXPECT_EQ(data.encoding.label_stddev, std::vector<double>{2.0});
    EXPECT_EQ(data.train->number(0), 1.0F);
    EXPECT_EQ(data.train->number(1), -1.0F);
    EXPECT_EQ(data.test->number(0), -1.25F);
    ASSERT_OK_AND_ASSIGN(const auto samples, LoadArraySamples(directory, data.encoding, 1));
    EXPECT_EQ(samples->number(0), -1.25F);
  }
}

// Returns what loading Images() gives after one of its files was replaced.
absl::StatusOr<TrainTest> LoadWith(const char* name, const std::string& contents,
                                   const ArrayOptions& options = {}) {
  const std::string directory = Images();
  WriteTestFile(directory, name, contents);
  return LoadArrays(directory, options);
}

TEST(Arrays, RefusesFilesThatDoNotFitTogether) {
  ExpectRefusals({
      {LoadWith("y_train.npy", Array("|u1", {3}, std::string("\0\1\2", 3))), "holds 2 samples but"},
      {LoadWith("x_test.npy", Array("|u1", {1, 3, 2, 1}, std::string(6, 'x'))),
       "test samples are pixels of shape (3, 2, 1), expected pixels of shape (3, 1, 2)"},
      {LoadWith("x_test.npy", Array("<f4", {1, 3, 1, 2}, std::string(24, '\0'))),
       "test samples are numbers of shape"},
      {LoadWith("y_test.npy", Array("|u1", {1}, "\3")), "label of row 0 is 3, expected 0 to 2"},
      {LoadWith("y_train.npy", Array("|u1", {2}, std::string(2, '\0'))), "fewer than 2 classes"},
      {LoadWith("y_train.npy", Array("<f4", {2}, Elements<float>({1.5F, NAN})),
                {.labels = LabelKind::kNumbers}),
       "y_train.npy: label of row 1 is nan"},
  });
  const std::string missing = Images();
  ASSERT_EQ(std::remove((missing + "/y_test.npy").c_str()), 0);
  EXPECT_THAT(LoadArrays(missing), StatusIs(kNotFound, "y_test.npy"));
  EXPECT_OK(LoadArrays(missing, {.sets = Sets::kTraining}));
}

// Returns a reader of contents of a file of Images(); its errors must name the file.
auto LoadedAs(const char* name) {
  return [name](const std::string& contents) {
    const absl::Status status = LoadWith(name, contents).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    return status;
  };
}

TEST(Arrays, RefusesOtherSamples) {
  const std::string twelve(12, 'x');
  constexpr int64_t kHalf = int64_t{1} << 32;
  const Refusal<std::string> refusals[] = {
      {Array("|u1", {12}, twelve), "an array of shape (12,), expected"},
      {Array("|u1", {2, 3, 1, 2, 1}, twelve), "(2, 3, 1, 2, 1)"},
      {Array("|u1", {0, 3, 1, 2}, ""), "at least one element"},
      {Array("|u1", {2, 3, 1, 2}, twelve, "True"), "Fortran's order"},
      {Array("<i2", {1, 6}, twelve), "an array of \"<i2\""},
      {Array(">f4", {1, 3}, twelve), "an array of \">f4\""},
      {Array("|u1", {2, 3, 1, 2}, twelve + "x"), "has trailing bytes", kDataLoss},
      {Array("|u1", {2, 3, 1, 3}, twelve), "is truncated", kDataLoss},
      // The products do not fit in 64 bits, and one wraps to the right number of bytes.
      {Array("|u1", {kHalf, kHalf}, ""), "is truncated", kDataLoss},
      {Array("<f8", {int64_t{1} << 61, 3}, ""), "is truncated", kDataLoss},
  };
  ExpectRefusals(LoadedAs("x_train.npy"), refusals);
}

TEST(Arrays, RefusesNumbersThatAreNotFinite) {
  for (const double bad : {std::nan(""), 1e300}) {
    const std::string directory = Numbers();
    WriteTestFile(directory, "x_test.npy", Array("<f8", {1, 3}, Elements<double>({0, bad, 0})));
    EXPECT_THAT(LoadArrays(directory), IsRefused("finite number"));
  }
}

TEST(Arrays, RefusesOtherLabels) {
  const Refusal<std::string> refusals[] = {
      {Array("|u1", {2, 1}, "xx"), "(2, 1), expected one label"},
      {Array("<f4", {2}, std::string(8, '\0')), "integers"},
      {Array("|i1", {2}, "\1\xFF"), "label of row 1 is -1"},
      {Array("<i8", {2}, Elements<int64_t>({kMaxArrayClasses, 0})),
       "label of row 0 is 1048576, expected 0 to 1048575"},
      {Array("<u8", {2}, std::string(16, '\xFF')), "label of row 0 is 18446744073709551615"},
      {Array("<i2", {2}, "xxx"), "is truncated", kDataLoss},
  };
  ExpectRefusals(LoadedAs("y_train.npy"), refusals);
}

// Writes two samples of that shape, with two labels, for training and for testing.
std::string TwoSamples(const std::vector<int64_t>& shape, const std::vector<float>& elements) {
  const std::string directory = TestDirectory();
  std::vector<int64_t> extents = {2};
  extents.insert(extents.end(), shape.begin(), shape.end());
  for (const char* set : {"train", "test"}) {
    WriteTestFile(directory, absl::StrCat("x_", set, ".npy"),
                  Array("<f4", extents, Elements(elements)));
    WriteTestFile(directory, absl::StrCat("y_", set, ".npy"),
                  Array("|u1", {2}, std::string("\0\1", 2)));
  }
  return directory;
}

// There are three channels of two by two pixels; each value is 100 * channel + 10 * row + column.
TEST(Arrays, BothOrdersOfChannelsAreReadIntoTheSameSamples) {
  using enum ChannelOrder;
  const std::vector<float> first = {0, 1,  10, 11, 100, 101, 110, 111, 200, 201, 210, 211,
                                    0, -1, -2, -3, -4,  -5,  -6,  -7,  -8,  -9,  -10, -11};
  const std::vector<float> last = {0, 100, 200, 1,  101, 201, 10, 110, 210, 11, 111, 211,
                                   0, -4,  -8,  -1, -5,  -9,  -2, -6,  -10, -3, -7,  -11};
  struct Case {
    std::optional<ChannelOrder> channels;
    std::vector<int64_t> shape;
    std::vector<float> elements;
  };
  for (const auto& [channels, shape, elements] : std::vector<Case>{
           {{}, {3, 2, 2}, first}, {kFirst, {3, 2, 2}, first}, {kLast, {2, 2, 3}, last}}) {
    const DataSource source = {.spec = TwoSamples(shape, elements), .channels = channels};
    ASSERT_OK_AND_ASSIGN(const auto data, LoadData(source));
    ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(source, {}, 2));
    for (const auto& set : {data.train, data.test, samples}) {
      EXPECT_EQ(set->spec().inputs.front().shape, (Shape{3, 2, 2}));
      std::vector<float> read = FeaturesOf(*set, 0);
      for (const float value : FeaturesOf(*set, 1)) read.push_back(value);
      EXPECT_EQ(read, first);
    }
  }
  EXPECT_THAT(LoadArrays(Numbers(), {.channels = kLast}),
              IsRefused("(samples, height, width, channels)"));
}

TEST(Arrays, ChannelsAreWhereTheFlagOrTheModelSaysOtherwiseFirst) {
  using enum ChannelOrder;
  constexpr char kEither[] = "--channels first or --channels last",
                 kLastOnly[] = "--channels last reads";
  struct Case {
    std::vector<int64_t> sample;
    std::optional<ChannelOrder> channels;
    Shape model_input, shape;  // of the data; [] if they are refused
    std::string refusal;
  };
  for (const auto& [sample, channels, model_input, shape, refusal] : std::vector<Case>{
           // These are signals, as from sensors, and small patches.
           {{9, 128, 1}, {}, {}, {9, 128, 1}, ""},
           {{9, 128, 1}, {}, {9, 128, 1}, {9, 128, 1}, ""},
           {{9, 128, 1}, {}, {1152}, {9, 128, 1}, ""},
           {{9, 128, 1}, {}, {1, 9, 128}, {}, kLastOnly},
           {{9, 128, 1}, kLast, {}, {1, 9, 128}, ""},
           {{4, 3, 3}, {}, {}, {4, 3, 3}, ""},
           {{4, 3, 3}, kLast, {4, 3, 3}, {3, 4, 3}, ""},
           {{15, 400, 3}, {}, {}, {15, 400, 3}, ""},
           {{64, 15, 1}, {}, {}, {64, 15, 1}, ""},
           {{7, 7, 1}, {}, {}, {7, 7, 1}, ""},
           // These look like images whose channels come last.
           {{8, 8, 1}, {}, {}, {}, kEither},
           {{16, 17, 3}, {}, {}, {}, kEither},
           {{64, 16, 1}, {}, {}, {}, kEither},
           {{64, 16, 1}, {}, {1024}, {}, kEither},
           {{64, 16, 1}, {}, {1, 8, 8}, {}, kEither},
           {{64, 16, 1}, {}, {1, 64, 16}, {}, kLastOnly},
           {{64, 16, 1}, {}, {64, 16, 1}, {64, 16, 1}, ""},
           {{64, 16, 1}, kFirst, {}, {64, 16, 1}, ""},
           {{64, 16, 1}, kFirst, {1, 64, 16}, {64, 16, 1}, ""},
           {{64, 16, 1}, kLast, {64, 16, 1}, {1, 64, 16}, ""},
           // Shapes with few channels either way, or neither way, are read as documented.
           {{3, 16, 3}, {}, {}, {3, 16, 3}, ""},
           {{1, 32, 1}, {}, {}, {1, 32, 1}, ""},
           {{5, 6, 2}, {}, {}, {5, 6, 2}, ""},
           {{16, 17, 4}, {}, {}, {16, 17, 4}, ""},
           {{5, 6, 2}, {}, {2, 5, 6}, {}, kLastOnly},
           {{5, 6, 2}, {}, {2, 6, 5}, {5, 6, 2}, ""},
           {{3, 3, 3}, {}, {3, 3, 3}, {3, 3, 3}, ""},
       }) {
    const auto elements = static_cast<size_t>(2 * sample[0] * sample[1] * sample[2]);
    const DataSource source = {.spec = TwoSamples(sample, std::vector<float>(elements)),
                               .channels = channels,
                               .model_input = model_input};
    SCOPED_TRACE(absl::StrCat(absl::StrJoin(sample, "x"), ", the model takes ",
                              model_input.ToString(), ", expected ", shape.ToString()));
    const auto data = LoadData(source);
    if (!refusal.empty()) {
      EXPECT_THAT(data, IsRefused(refusal));
      EXPECT_THAT(LoadSamples(source, {}, 2), IsRefused(refusal));
      continue;
    }
    ASSERT_OK(data);
    ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(source, {}, 2));
    for (const auto& set : {data->train, data->test, samples}) {
      EXPECT_EQ(set->spec().inputs.front().shape, shape);
    }
  }
}

// A damaged file is refused by its name, or is still a data set.
TEST(Arrays, DamagedFilesAreReadOrRefused) {
  const std::string directory = Images();
  int read = 0, refused = 0;
  for (const std::string name : {"x_train.npy", "y_test.npy"}) {
    ASSERT_OK_AND_ASSIGN(const std::string whole, base::ReadFile(directory + "/" + name, 1000));
    const auto load = [&](const std::string& contents) {
      WriteTestFile(directory, name, contents);
      const absl::Status status = LoadArrays(directory).status();
      ++(status.ok() ? read : refused);
      if (!status.ok()) {
        EXPECT_THAT(status.message(), HasSubstr(directory));
        EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("\n")));
      }
      return status;
    };
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(load(whole.substr(0, size)).ok()) << name << " cut to " << size;
    }
    for (size_t i = 0; i < whole.size() * 8; ++i) {
      std::string flipped = whole;
      flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ 1 << i % 8);
      (void)load(flipped);
    }
    EXPECT_OK(load(whole));
  }
  EXPECT_GT(read, 90);  // pixels are 96 bits
  EXPECT_GT(refused, 1000);
}

// A sparse file takes no room on the disk.
TEST(Arrays, RefusesAFileAboveTheLimit) {
  const std::string directory = Images();
  std::filesystem::resize_file(directory + "/x_train.npy", kMaxArrayBytes + 1);
  EXPECT_THAT(LoadData({.spec = directory}),
              IsRefused(AllOf(HasSubstr("x_train.npy"), HasSubstr("the limit"))));
}

TEST(Arrays, SayWhatImagesTheyAre) {
  const auto image_of = [](const std::vector<int64_t>& extents) {
    const std::string directory = Images();
    std::vector<int64_t> shape = {2};
    shape.insert(shape.end(), extents.begin(), extents.end());
    WriteTestFile(directory, "x_train.npy", Array("|u1", shape, "abcdefghijkl"));
    shape[0] = 1;
    WriteTestFile(directory, "x_test.npy", Array("|u1", shape, "abcdef"));
    return LoadArrays(directory).value().train->spec().inputs.front().shape;
  };
  EXPECT_EQ(image_of({3, 1, 2}), (Shape{3, 1, 2}));
  EXPECT_EQ(image_of({3, 2}), (Shape{1, 3, 2}));
  EXPECT_EQ(image_of({6}), Shape{6});
}

}  // namespace
}  // namespace stagecoach::engine
