#ifndef STAGECOACH_ENGINE_DATA_IMAGES_ORIENTATION_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_ORIENTATION_H_

#include "absl/strings/string_view.h"
#include "engine/data/images/image.h"

namespace stagecoach::engine {

// Returns the orientation, 1 to 8, that an Exif record (a TIFF file, without what JPEG puts before
// it) gives an image; 1, which is upright, if there is none or the record is malformed.
int ExifOrientation(absl::string_view exif);

// Returns the image as a viewer shows it, that is, turned and mirrored by its orientation.
Image Upright(Image image, int orientation);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_ORIENTATION_H_
