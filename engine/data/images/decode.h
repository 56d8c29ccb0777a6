#ifndef STAGECOACH_ENGINE_DATA_IMAGES_DECODE_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_DECODE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/image.h"

namespace stagecoach::engine {

// Decoders for the two kinds of image files that data sets consist of, by libpng and libjpeg-turbo.
// The kind is recognized by content.
//
// The pixels are those that Pillow's convert("RGB") or, with one channel, convert("L") returns,
// turned by the orientation in an Exif record: palettes and gray levels of 1 to 16 bits have 8
// (16 bits are rounded), transparency is dropped, and CMYK becomes red, green and blue. Profiles
// and gamma are ignored.
//
// InvalidArgument says what is wrong, without a name: neither kind, damaged or truncated, or more
// pixels than kMaxImagePixels, which is found out before there is memory for them.

inline constexpr int64_t kMaxImageFileBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxImagePixels = 100'000'000;
inline constexpr int64_t kMaxImageSide = 65'500;  // JPEG's limit

absl::StatusOr<Image> DecodeImage(absl::string_view file, int channels);

// Decode the two kinds, for DecodeImage: with the file's own number of channels, 1 or 3.
absl::StatusOr<Image> DecodePng(absl::string_view file);
absl::StatusOr<Image> DecodeJpeg(absl::string_view file);

// Returns an error unless an image has pixels, and not too many.
absl::Status CheckImageSize(int64_t height, int64_t width);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_DECODE_H_
