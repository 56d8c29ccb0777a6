#include "engine/data/images/decode.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "engine/data/images/orientation.h"
#include "engine/data/images/resize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

std::string ImageFixture(const std::string& name) {
  return base::ReadFile(absl::StrCat(STAGECOACH_IMAGE_FIXTURES, "/", name), 1 << 20).value();
}

// Copies of libjpeg-turbo differ in a bit at most.
int64_t ToleranceOf(const std::string& name) { return absl::EndsWith(name, ".jpg") ? 2 : 0; }

TEST(DecodeImage, AgreesWithPillow) {
  const auto cases = base::ParseJson(ImageFixture("cases.json"));
  ASSERT_OK(cases);
  ASSERT_GT(cases->size(), 25U);
  for (const auto& entry : *cases) {
    const std::string name = entry["file"];
    const int64_t side = entry["side"];
    SCOPED_TRACE(absl::StrCat(name, " ", side));
    const auto image = DecodeImage(ImageFixture(name), entry["channels"]);
    ASSERT_OK(image);
    EXPECT_EQ(image->channels, entry["channels"].get<int>());
    const Image fit = FitInto(*image, side, side);
    std::string expected;
    ASSERT_TRUE(absl::Base64Unescape(entry["pixels"].get<std::string>(), &expected));
    ASSERT_EQ(fit.pixels.size(), expected.size());
    int worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(fit.pixels[i] - static_cast<uint8_t>(expected[i])));
    }
    EXPECT_LE(worst, ToleranceOf(name));
  }
}

TEST(DecodeImage, RefusesDamagedAndTruncatedFiles) {
  for (const std::string name : {"rgb.png", "interlaced.png", "rgb.jpg", "progressive.jpg"}) {
    const std::string file = ImageFixture(name);
    // All but the marker of the end, without which a JPEG file has all of its pixels.
    for (size_t size = 0; size + 3 < file.size(); size += 7) {
      EXPECT_THAT(DecodeImage(file.substr(0, size), 3),
                  StatusIs(absl::StatusCode::kInvalidArgument))
          << name << " " << size;
    }
  }
  EXPECT_THAT(DecodeImage("", 3), StatusIs(absl::StatusCode::kInvalidArgument, "is empty"));
  EXPECT_THAT(DecodeImage("GIF89a", 3),
              StatusIs(absl::StatusCode::kInvalidArgument, "is neither PNG nor JPEG"));
  std::string damaged = ImageFixture("rgb.png");
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_THAT(DecodeImage(damaged, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a damaged PNG file: ")));
}

TEST(DecodeImage, RefusesTooManyPixelsBeforeThereIsMemoryForThem) {
  std::string png = ImageFixture("rgb.png");
  // The header says 2^24 x 2^24, and its checksum is made to fit.
  png.replace(16, 8, std::string("\x01\0\0\0\x01\0\0\0", 8));
  const std::string crc("\xa3\x1d\x5d\x76", 4);
  png.replace(29, 4, crc);
  EXPECT_THAT(DecodeImage(png, 3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckImageSize(1 << 24, 1 << 24), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckImageSize(20'000, 20'000),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("20000 x 20000 pixels")));
  EXPECT_OK(CheckImageSize(10'000, 10'000));

  std::string jpeg = ImageFixture("rgb.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  EXPECT_THAT(DecodeImage(jpeg, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65500 x 65500 pixels")));
}

TEST(ExifOrientation, IsUprightIfTheRecordIsMalformed) {
  // Big and little endian: one entry, the orientation.
  const std::string big("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0", 22);
  const std::string little("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0", 22);
  EXPECT_EQ(ExifOrientation(big), 6);
  EXPECT_EQ(ExifOrientation(little), 8);
  for (size_t size = 0; size < 20; ++size) EXPECT_EQ(ExifOrientation(big.substr(0, size)), 1);
  std::string other = little;
  other[18] = 9;
  EXPECT_EQ(ExifOrientation(other), 1);
  other = little;
  other[4] = '\xff';
  EXPECT_EQ(ExifOrientation(other), 1);
}

TEST(FitInto, MakesOtherShapesThanSquares) {
  Image image(2, 6, 1);
  for (int64_t i = 0; i < 12; ++i) image.pixels[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  const Image middle = FitInto(image, 2, 4);
  EXPECT_EQ(middle.pixels, (std::vector<uint8_t>{1, 2, 3, 4, 7, 8, 9, 10}));
  EXPECT_EQ(FitInto(image, 6, 6).pixels.size(), 36U);
  EXPECT_EQ(FitInto(image, 1, 6).pixels, (std::vector<uint8_t>{0, 1, 2, 3, 4, 5}))
      << "half a row above is rounded to none, as torchvision does";
}

}  // namespace
}  // namespace stagecoach::engine
