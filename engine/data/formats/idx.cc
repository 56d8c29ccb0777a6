#include "engine/data/formats/idx.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/data/formats/format.h"
#include "engine/data/pixels.h"

namespace stagecoach::engine {
namespace {

constexpr uint8_t kTypeUint8 = 8;
constexpr int64_t kMagicBytes = 4;
constexpr int64_t kSizeBytes = 4;

struct IdxArray {
  std::vector<int64_t> shape;
  std::vector<uint8_t> elements;
};

uint8_t ByteAt(const std::string& content, int64_t offset) {
  return static_cast<uint8_t>(content[offset]);
}

int64_t BigEndian32At(const std::string& content, int64_t offset) {
  int64_t value = 0;
  for (int64_t i = 0; i < kSizeBytes; ++i) value = value << 8 | ByteAt(content, offset + i);
  return value;
}

absl::Status CheckMagic(const std::string& path, const std::string& content, int64_t dimensions) {
  const int64_t header_bytes = kMagicBytes + kSizeBytes * dimensions;
  const int64_t size = static_cast<int64_t>(content.size());
  if (size < kMagicBytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected an IDX header of %d: the file is truncated", path,
                        size, header_bytes));
  }
  if (ByteAt(content, 0) != 0 || ByteAt(content, 1) != 0) {
    return base::DataError(
        absl::StrFormat("%s: starts with the bytes %02x %02x, expected 00 00: not an IDX file",
                        path, ByteAt(content, 0), ByteAt(content, 1)));
  }
  if (ByteAt(content, 2) != kTypeUint8) {
    return base::DataError(absl::StrFormat("%s: IDX element type 0x%02x, expected 0x%02x (uint8)",
                                           path, ByteAt(content, 2), kTypeUint8));
  }
  if (ByteAt(content, 3) != dimensions) {
    return base::DataError(
        absl::StrFormat("%s: %d dimensions, expected %d: is this the right one of the images and "
                        "labels files?",
                        path, ByteAt(content, 3), dimensions));
  }
  if (size < header_bytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected an IDX header of %d: the file is truncated", path,
                        size, header_bytes));
  }
  return absl::OkStatus();
}

// Returns the product of `shape`, or InvalidArgument if it exceeds `max_bytes`.
absl::StatusOr<int64_t> CountElements(const std::string& path, absl::Span<const int64_t> shape,
                                      int64_t max_bytes) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size != 0 && count > max_bytes / size) {
      return base::DataError(
          absl::StrFormat("%s: the header declares %s elements, more than the limit of %d bytes",
                          path, absl::StrJoin(shape, " x "), max_bytes));
    }
    count *= size;
  }
  return count;
}

absl::StatusOr<IdxArray> ReadIdx(const std::string& path, int64_t dimensions, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string content, base::ReadGzipFile(path, max_bytes));
  RETURN_IF_ERROR(CheckMagic(path, content, dimensions));
  IdxArray array;
  for (int64_t i = 0; i < dimensions; ++i) {
    array.shape.push_back(BigEndian32At(content, kMagicBytes + kSizeBytes * i));
  }
  ASSIGN_OR_RETURN(const int64_t expected, CountElements(path, array.shape, max_bytes));
  const int64_t header_bytes = kMagicBytes + kSizeBytes * dimensions;
  const int64_t found = static_cast<int64_t>(content.size()) - header_bytes;
  if (found != expected) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes after the header, expected %d (%s): the file %s", path, found,
                        expected, absl::StrJoin(array.shape, " x "),
                        found < expected ? "is truncated" : "has trailing bytes"));
  }
  array.elements.assign(content.begin() + header_bytes, content.end());
  return array;
}

// Returns `name` in `directory`, plain or compressed.
absl::StatusOr<std::string> FindFile(const std::string& directory, const std::string& name) {
  const std::string plain = absl::StrCat(directory, "/", name);
  for (const std::string& path : {plain, absl::StrCat(plain, ".gz")}) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return base::DataError(
      absl::StrFormat("%s: neither %s nor %s.gz is there", directory, name, name),
      absl::StatusCode::kNotFound);
}

absl::Status CheckDirectory(const std::string& directory) {
  if (IsDirectory(directory)) return absl::OkStatus();
  if (base::Exists(directory)) {
    return base::DataError(
        absl::StrCat(directory, ": is not a directory, expected one that holds IDX files"));
  }
  std::string message = absl::StrCat(directory, ": no such directory");
  if (directory == kFashionMnistDirectory) {
    absl::StrAppend(&message,
                    "; install it with \"apt-get install dataset-fashion-mnist\" (Debian)");
  }
  return base::DataError(message, absl::StatusCode::kNotFound);
}

bool IsOneFile(const std::string& path) { return base::Exists(path) && !IsDirectory(path); }

struct LabeledImages {
  IdxImages images;
  std::vector<int32_t> labels;  // none if unknown
};

kernels::Shape ShapeOf(const IdxImages& images) { return {1, images.height, images.width}; }

absl::StatusOr<LabeledImages> ReadImages(const std::string& path) {
  LabeledImages set;
  ASSIGN_OR_RETURN(set.images, ReadIdxImages(path));
  if (!set.images.pixels.empty()) return set;
  return base::DataError(absl::StrFormat("%s: %d images of %d x %d, expected at least one pixel",
                                         path, set.images.count, set.images.height,
                                         set.images.width));
}

// `prefix` is "train" or "t10k".
absl::StatusOr<LabeledImages> ReadLabeledImages(const std::string& directory,
                                                const std::string& prefix) {
  ASSIGN_OR_RETURN(const std::string images_path,
                   FindFile(directory, absl::StrCat(prefix, "-images-idx3-ubyte")));
  ASSIGN_OR_RETURN(const std::string labels_path,
                   FindFile(directory, absl::StrCat(prefix, "-labels-idx1-ubyte")));
  ASSIGN_OR_RETURN(LabeledImages set, ReadImages(images_path));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> labels, ReadIdxLabels(labels_path));
  if (set.images.count != static_cast<int64_t>(labels.size())) {
    return base::DataError(
        absl::StrFormat("%s holds %d images but %s holds %d labels, expected as many", images_path,
                        set.images.count, labels_path, labels.size()));
  }
  set.labels.assign(labels.begin(), labels.end());
  return set;
}

absl::StatusOr<LabeledImages> ReadImagesToPredict(const std::string& path) {
  if (!IsDirectory(path)) return ReadImages(path);
  const absl::Status labels = FindFile(path, "t10k-labels-idx1-ubyte").status();
  if (!absl::IsNotFound(labels)) return ReadLabeledImages(path, "t10k");
  ASSIGN_OR_RETURN(const std::string images, FindFile(path, "t10k-images-idx3-ubyte"));
  return ReadImages(images);
}

}  // namespace

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(IdxArray array, ReadIdx(path, 3, max_bytes));
  return IdxImages{array.shape[0], array.shape[1], array.shape[2], std::move(array.elements)};
}

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(IdxArray array, ReadIdx(path, 1, max_bytes));
  return std::move(array.elements);
}

bool HoldsIdx(const std::string& directory) {
  for (const char* const name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                 "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    if (FindFile(directory, name).ok()) return true;
  }
  return false;
}

absl::StatusOr<TrainTest> LoadIdxDirectory(const std::string& directory, Sets sets) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  ASSIGN_OR_RETURN(LabeledImages train, ReadLabeledImages(directory, "train"));
  LabeledImages test;
  if (sets == Sets::kBoth) {
    ASSIGN_OR_RETURN(test, ReadLabeledImages(directory, "t10k"));
    if (train.images.height != test.images.height || train.images.width != test.images.width) {
      return base::DataError(absl::StrFormat(
          "%s: test images are %d x %d, expected %d x %d as in the training set", directory,
          test.images.height, test.images.width, train.images.height, train.images.width));
    }
  }
  const int64_t classes = 1 + *std::max_element(train.labels.begin(), train.labels.end());
  const PixelStatistics statistics = MeasurePixels(train.images.pixels);

  const auto create = [&](LabeledImages& set) {
    return ImageDataset::Create(ShapeOf(set.images), classes, statistics.mean, statistics.stddev,
                                std::move(set.images.pixels), std::move(set.labels));
  };
  auto train_set = create(train);
  RETURN_IF_ERROR(base::Annotate(train_set.status(), absl::StrCat(directory, ": training set")));
  const DataEncoding encoding = {.mean = {statistics.mean}, .stddev = {statistics.stddev}};
  if (sets == Sets::kTraining) return TrainTest{*std::move(train_set), nullptr, encoding};
  auto test_set = create(test);
  RETURN_IF_ERROR(base::Annotate(test_set.status(), absl::StrCat(directory, ": test set")));
  return TrainTest{*std::move(train_set), *std::move(test_set), encoding};
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadIdxImages(const std::string& path,
                                                             const DataEncoding& encoding,
                                                             int64_t classes) {
  ASSIGN_OR_RETURN(LabeledImages set, ReadImagesToPredict(path));
  if (set.labels.empty()) classes = 0;
  auto created = ImageDataset::Create(ShapeOf(set.images), classes, encoding.mean.front(),
                                      encoding.stddev.front(), std::move(set.images.pixels),
                                      std::move(set.labels));
  RETURN_IF_ERROR(base::Annotate(created.status(), path));
  return *std::move(created);
}

// Any file may be one of images to predict: there is no name to go by.
const DataFormat kIdxFormat = {
    .name = "IDX",
    .form = "a directory of IDX files",
    .matches =
        [](const DataSource& source) {
          return HoldsIdx(source.spec) || source.spec == kFashionMnistDirectory ||
                 IsOneFile(source.spec);
        },
    .load = [](const DataSource& source, Sets sets) -> absl::StatusOr<TrainTest> {
      if (IsOneFile(source.spec)) return UnknownDataFormat(source.spec);
      return LoadIdxDirectory(source.spec, sets);
    },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t classes) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(CheckEncodesImages(encoding));
      auto images = LoadIdxImages(source.spec, encoding, classes);
      if (!absl::IsInvalidArgument(images.status()) || IsDirectory(source.spec)) return images;
      return base::WithMessage(
          images.status(),
          absl::StrCat(images.status().message(), "; other forms are ", DescribeDataForms()));
    },
};

}  // namespace stagecoach::engine
