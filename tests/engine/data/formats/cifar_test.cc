#include "engine/data/formats/cifar.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/data/formats/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns a record of one label, and one value for all pixels of each color.
std::string Record(int label, int red, int green, int blue) {
  std::string record(1, static_cast<char>(label));
  for (const int value : {red, green, blue}) record.append(1024, static_cast<char>(value));
  return record;
}

class Cifar : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  std::string folder() const { return folder_.path().string(); }

  const TestFolder folder_;
};

TEST_F(Cifar, ReadsAllTrainingFilesAndStandardizesByTheirPixels) {
  Write("data_batch_1.bin", Record(3, 0, 0, 0) + Record(9, 255, 255, 255));
  Write("data_batch_2.bin", Record(0, 0, 255, 0) + Record(1, 255, 0, 255));
  Write("test_batch.bin", Record(7, 255, 0, 51));
  ASSERT_TRUE(HoldsCifar(folder()));
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData({.spec = folder()}));
  EXPECT_EQ(data.train->rows(), 4);
  EXPECT_EQ(data.train->features(), 3072);
  EXPECT_EQ(data.train->classes(), 10);
  EXPECT_EQ(data.train->spec().inputs.front().shape, (kernels::Shape{3, 32, 32}));
  EXPECT_EQ(data.train->label(1), 9);
  EXPECT_EQ(data.train->label(2), 0);
  EXPECT_EQ(data.test->label(0), 7);
  // Half of the pixels are white.
  std::vector<float> pixels(3072);
  data.test->CopyNumbers(0, 0, absl::MakeSpan(pixels));
  EXPECT_FLOAT_EQ(pixels[0], 1.0F);
  EXPECT_FLOAT_EQ(pixels[1024], -1.0F);
  EXPECT_NEAR(pixels[2048], (0.2 - 0.5) / 0.5, 1e-6);

  ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples({.spec = folder()}, data.encoding, 10));
  std::vector<float> again(3072);
  samples->CopyNumbers(0, 0, absl::MakeSpan(again));
  EXPECT_EQ(again, pixels);

  std::filesystem::remove(folder_.path() / "test_batch.bin");
  EXPECT_OK(LoadCifarDirectory(folder(), Sets::kTraining));
}

TEST_F(Cifar, RefusesWhatIsNoSuchFile) {
  EXPECT_FALSE(HoldsCifar(folder()));
  Write("data_batch_1.bin", Record(3, 0, 0, 0));
  EXPECT_THAT(LoadCifarDirectory(folder()),
              StatusIs(absl::StatusCode::kNotFound, "test_batch.bin"));
  Write("test_batch.bin", Record(3, 0, 0, 0).substr(1));
  EXPECT_THAT(LoadCifarDirectory(folder()),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("test_batch.bin: 3072 bytes"), HasSubstr("3073"))));
  Write("test_batch.bin", "");
  EXPECT_THAT(LoadCifarDirectory(folder()), IsRefused("is empty"));
  Write("test_batch.bin", Record(3, 0, 0, 0) + Record(10, 0, 0, 0));
  EXPECT_THAT(LoadCifarDirectory(folder()), IsRefused("record 1 has the label 10"));
}

}  // namespace
}  // namespace stagecoach::engine
