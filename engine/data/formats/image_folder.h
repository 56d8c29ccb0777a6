#ifndef STAGECOACH_ENGINE_DATA_FORMATS_IMAGE_FOLDER_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_IMAGE_FOLDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Reader for folders of PNG and JPEG files with a subfolder per class, as torchvision's ImageFolder
// has them: photos/cat/1.jpg, photos/cat/more/2.png, photos/dog/1.jpg. Classes are numbered in the
// order of the bytes of their names, and a class's images are sorted likewise. If there is a
// subfolder train/ of class folders, that is the training set, and val/ or else test/, if it is
// there, the test set; otherwise some of the images, drawn by the seed, are. Hidden files and
// folders are not read.
//
// Each image becomes a sample as DecodeImage and FitInto say, standardized by the mean and standard
// deviation of all training pixels. All files are decoded once when they are loaded, so that broken
// ones are known; sets that take up to `most_kept_bytes` are kept, and others are decoded again
// when they are needed, ahead of the training.

inline constexpr double kDefaultImageTestFraction = 0.2;
inline constexpr int64_t kDefaultImageSide = 32;
inline constexpr int64_t kMaxImageSampleSide = 4096;

// Returns whether that is a directory with images, in subfolders or not, or one image.
bool HoldsImageFolder(const std::string& path);

// Returns whether a part of the images becomes the test set.
bool IsDividedImageFolder(const std::string& path);

struct ImageFolderOptions {
  Sets sets = Sets::kBoth;
  kernels::Shape shape{3, kDefaultImageSide, kDefaultImageSide};  // of samples; 1 or 3 channels
  double test_fraction = kDefaultImageTestFraction;               // in (0, 1)
  uint64_t seed = 0;
  bool skips_broken = false;      // images, which otherwise are errors
  bool has_random_boxes = false;  // ImageFileDataset::Options
  bool has_shapes_only = false;   // the images are not read
  std::function<void(const std::string&)> on_notice = {};
  int64_t most_kept_bytes = int64_t{2} << 30;  // per set
};

// NotFound or InvalidArgument say what is missing, or which image is broken.
absl::StatusOr<TrainTest> LoadImageFolder(const std::string& folder,
                                          const ImageFolderOptions& options);

// Loads one image, or those of a folder, to predict: those of its test set, if it has a subfolder
// for it, those of class folders, which must be classes of the encoding, or those that are in no
// class folder, without labels.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadFolderImages(const std::string& folder,
                                                                const ImageFolderOptions& options,
                                                                const DataEncoding& encoding,
                                                                int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_IMAGE_FOLDER_H_
