#include "engine/data/images/orientation.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace stagecoach::engine {
namespace {

// Reads the numbers of a TIFF file, of either byte order.
class TiffReader {
 public:
  TiffReader(absl::string_view bytes, bool is_big) : bytes_(bytes), is_big_(is_big) {}

  // Returns the number of `size` bytes at `offset`; nothing if the file ends before.
  std::optional<uint64_t> At(uint64_t offset, uint64_t size) const {
    if (offset > bytes_.size() || bytes_.size() - offset < size) return std::nullopt;
    uint64_t value = 0;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t place = offset + (is_big_ ? i : size - 1 - i);
      value = value << 8 | static_cast<uint8_t>(bytes_[place]);
    }
    return value;
  }

 private:
  const absl::string_view bytes_;
  const bool is_big_;
};

}  // namespace

int ExifOrientation(absl::string_view exif) {
  constexpr uint64_t kOrientationTag = 0x0112, kShort = 3, kEntryBytes = 12;
  if (exif.size() < 8 || (exif.substr(0, 2) != "II" && exif.substr(0, 2) != "MM")) return 1;
  const TiffReader reader(exif, exif[0] == 'M');
  const uint64_t first = reader.At(4, 4).value_or(0);
  const uint64_t entries = reader.At(first, 2).value_or(0);
  for (uint64_t i = 0; i < entries; ++i) {
    const uint64_t entry = first + 2 + i * kEntryBytes;
    const std::optional<uint64_t> tag = reader.At(entry, 2);
    if (!tag.has_value()) return 1;
    if (*tag != kOrientationTag || reader.At(entry + 2, 2) != kShort) continue;
    const uint64_t orientation = reader.At(entry + 8, 2).value_or(1);
    return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
  }
  return 1;
}

Image Upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  // From 5 on, rows of the image are columns of what is shown. Whether the first row then is the
  // right or the lower edge, and the first column the other, follows from the standard's table.
  const bool swaps = orientation >= 5;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool from_below =
      orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  Image shown(swaps ? image.width : image.height, swaps ? image.height : image.width,
              image.channels);
  for (int64_t y = 0; y < shown.height; ++y) {
    uint8_t* to = shown.Row(y);
    for (int64_t x = 0; x < shown.width; ++x, to += image.channels) {
      const int64_t own_x = from_right ? shown.width - 1 - x : x;
      const int64_t own_y = from_below ? shown.height - 1 - y : y;
      const uint8_t* const from =
          image.Row(swaps ? own_x : own_y) + (swaps ? own_y : own_x) * image.channels;
      std::copy_n(from, image.channels, to);
    }
  }
  return shown;
}

}  // namespace stagecoach::engine
