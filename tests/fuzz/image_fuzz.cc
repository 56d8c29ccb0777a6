#include "engine/data/images/decode.h"
#include "engine/data/images/resize.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  for (const int channels : {1, 3}) {
    const absl::StatusOr<engine::Image> image = engine::DecodeImage(input, channels);
    if (!image.ok()) return image.status();
    STAGECOACH_CHECK(image->channels == channels &&
                         std::ssize(image->pixels) == image->height * image->width * channels,
                     "an image of another size than it says");
    if (image->height > 1000 || image->width > 1000) return absl::OkStatus();  // takes long
    const engine::Image fit = engine::FitInto(*image, 5, 7);
    STAGECOACH_CHECK(fit.pixels.size() == static_cast<size_t>(5 * 7 * channels), "another size");
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
