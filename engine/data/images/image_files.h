#ifndef STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_FILES_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_FILES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/images/read_ahead.h"
#include "engine/data/pixels.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Files of images, and how they become samples.
struct ImageList {
  struct File {
    std::string name;  // in the folder
    int32_t label = 0;
  };
  std::string folder;
  std::vector<File> files;
  kernels::Shape shape;  // [channels, height, width], of all samples
  int64_t classes = 0;   // 0: the labels are unknown

  std::string PathOf(int64_t row) const;
  int64_t row_bytes() const { return shape.elements(); }
};

// Says which part of an image is a sample, in one epoch: a box of 8 to 100 % of its area and of a
// ratio of 3:4 to 4:3, as torchvision's RandomResizedCrop draws it, by these two and the row alone.
struct RandomBoxes {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

// Reads a file and writes its pixels, (channels, height, width): the whole image by FitInto, or a
// box. Errors name the file.
absl::Status ReadImageFile(const ImageList& list, int64_t row,
                           const std::optional<RandomBoxes>& boxes, absl::Span<std::byte> out);

// What is found when all files are read once.
struct ScannedImages {
  PixelHistogram histogram = {};  // of the images that can be read
  std::vector<std::byte> pixels;  // (rows, shape) of all; empty if they take more than was allowed
  std::vector<int64_t> broken;    // rows that cannot be read, in order
  absl::Status first_error;       // of broken.front()
};
ScannedImages ScanImages(const ImageList& list, int64_t most_kept_bytes, int threads);

// The samples of files that are read when they are needed, or have been read before. Each row is
// called as its file.
class ImageFileDataset final : public Dataset {
 public:
  struct Options {
    double mean = 0.0, stddev = 1.0;
    std::vector<std::byte> pixels;  // of all files, or empty
    bool has_random_boxes = false;  // in training (ForEpoch); then `pixels` are for other uses
    int threads = 1;                // that read ahead
    int64_t most_ahead_bytes = int64_t{256} << 20;
  };
  // Errors are those of ImageSpec, for the mean and standard deviation, or for fewer than two
  // classes.
  static absl::StatusOr<std::shared_ptr<const ImageFileDataset>> Create(
      std::shared_ptr<const ImageList> list, Options options);

  int64_t rows() const override { return static_cast<int64_t>(list_->files.size()); }
  std::shared_ptr<const Dataset> ForEpoch(uint64_t seed, int64_t epoch) const override;
  std::string NameOf(int64_t row) const override;
  void WillRead(absl::Span<const int64_t> rows) const override;
  absl::Status ReadStatus() const override;

 private:
  ImageFileDataset(SampleSpec spec, std::shared_ptr<const ImageList> list, Options options,
                   std::optional<RandomBoxes> boxes);
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const std::shared_ptr<const ImageList> list_;
  const Options options_;
  const std::optional<RandomBoxes> boxes_;
  mutable std::mutex mutex_;  // of status_
  mutable absl::Status status_;
  mutable ReadAhead ahead_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_FILES_H_
