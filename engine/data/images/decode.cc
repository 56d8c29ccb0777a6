#include "engine/data/images/decode.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kPngMagic = "\x89PNG\r\n\x1a\n";
constexpr absl::string_view kJpegMagic = "\xff\xd8\xff";

// Computes brightness as ITU-R 601 weighs colors, with Pillow's rounding.
Image ToGray(const Image& image) {
  constexpr int kRed = 19595, kGreen = 38470, kBlue = 7471, kHalf = 0x8000, kShift = 16;
  Image gray(image.height, image.width, 1);
  const uint8_t* from = image.pixels.data();
  for (uint8_t& pixel : gray.pixels) {
    pixel = static_cast<uint8_t>((from[0] * kRed + from[1] * kGreen + from[2] * kBlue + kHalf) >>
                                 kShift);
    from += 3;
  }
  return gray;
}

Image ToColor(const Image& image) {
  Image color(image.height, image.width, 3);
  uint8_t* to = color.pixels.data();
  for (const uint8_t pixel : image.pixels) {
    for (int channel = 0; channel < 3; ++channel) *to++ = pixel;
  }
  return color;
}

}  // namespace

absl::Status CheckImageSize(int64_t height, int64_t width) {
  if (height < 1 || width < 1) return base::DataError("has no pixels");
  if (height <= kMaxImageSide && width <= kMaxImageSide && height * width <= kMaxImagePixels) {
    return absl::OkStatus();
  }
  return base::DataError(absl::StrCat("has ", height, " x ", width,
                                      " pixels, more than the limit of ", kMaxImagePixels,
                                      ", or of ", kMaxImageSide, " a side"));
}

absl::StatusOr<Image> DecodeImage(absl::string_view file, int channels) {
  const bool is_png = absl::StartsWith(file, kPngMagic);
  if (!is_png && !absl::StartsWith(file, kJpegMagic)) {
    return base::DataError(file.empty() ? "is empty" : "is neither PNG nor JPEG");
  }
  ASSIGN_OR_RETURN(Image image, is_png ? DecodePng(file) : DecodeJpeg(file));
  if (image.channels == channels) return image;
  return channels == 1 ? ToGray(image) : ToColor(image);
}

}  // namespace stagecoach::engine
