#ifndef STAGECOACH_ENGINE_DATA_FORMATS_IDX_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_IDX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Readers for IDX, the format of the MNIST family of image sets (http://yann.lecun.com/exdb/mnist):
// two zero bytes, a type byte (8 is uint8, the only one accepted), the number of dimensions, each
// dimension as a big-endian uint32, then the elements row-major. Files may be plain or gzipped.
//
// Errors name the file, what was found and what was expected: NotFound for a missing file, DataLoss
// for one that is truncated or has extra bytes, ResourceExhausted for one above the limit,
// InvalidArgument for any other malformed content.

// The limit for a file's uncompressed size; no buffer grows beyond it.
inline constexpr int64_t kMaxIdxBytes = int64_t{1} << 30;

// The directory in which Debian's package dataset-fashion-mnist puts its files.
inline constexpr char kFashionMnistDirectory[] = "/usr/share/datasets/fashion-mnist";

struct IdxImages {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // (count, height, width)
};

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path, int64_t max_bytes = kMaxIdxBytes);

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path,
                                                   int64_t max_bytes = kMaxIdxBytes);

// Returns whether that is a directory that has one of the four files that LoadIdxDirectory reads.
bool HoldsIdx(const std::string& directory);

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
// t10k-labels-idx1-ubyte, each plain or, if that is missing, with the suffix .gz. The number of
// classes is one more than the largest training label. Both sets are standardized by the mean and
// standard deviation of all training pixels, computed from their exact histogram. NotFound if the
// directory or a file is missing; otherwise the errors above, and InvalidArgument if images and
// labels, or the training and the test set, do not fit together.
absl::StatusOr<TrainTest> LoadIdxDirectory(const std::string& directory, Sets sets = Sets::kBoth);

// Loads images to predict, standardized as `encoding` says, which has one mean: those at `path`,
// without labels; or, if that is a directory, t10k-images-idx3-ubyte, with the labels next to them
// if those exist. `classes`: the maximum that labels may tell apart. Errors as above.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadIdxImages(const std::string& path,
                                                             const DataEncoding& encoding,
                                                             int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_IDX_H_
