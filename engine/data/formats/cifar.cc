#include "engine/data/formats/cifar.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/data/formats/format.h"
#include "engine/data/pixels.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kCifarPixels = int64_t{3} * 32 * 32;
constexpr int64_t kCifarClasses = 10;

struct CifarImages {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

std::string TrainingFile(const std::string& directory, int number) {
  return absl::StrCat(directory, "/data_batch_", number, ".bin");
}

std::string TestFile(const std::string& directory) {
  return absl::StrCat(directory, "/test_batch.bin");
}

// Adds the records of a file.
absl::Status ReadRecords(const std::string& path, CifarImages& images) {
  constexpr size_t kRecordBytes = 1 + kCifarPixels;
  ASSIGN_OR_RETURN(const std::string content, base::ReadGzipFile(path, kMaxCifarBytes));
  if (content.empty()) return base::DataError(absl::StrCat(path, ": is empty"));
  if (content.size() % kRecordBytes != 0) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected a multiple of %d: the file is truncated, or not "
                        "the binary version of CIFAR-10",
                        path, content.size(), kRecordBytes));
  }
  for (size_t begin = 0; begin < content.size(); begin += kRecordBytes) {
    const auto label = static_cast<uint8_t>(content[begin]);
    if (label >= kCifarClasses) {
      return base::DataError(absl::StrFormat("%s: record %d has the label %d, expected 0 to %d",
                                             path, begin / kRecordBytes, label, kCifarClasses - 1));
    }
    images.labels.push_back(label);
    images.pixels.insert(images.pixels.end(), content.begin() + begin + 1,
                         content.begin() + begin + kRecordBytes);
  }
  return absl::OkStatus();
}

auto DatasetOf(CifarImages images, double mean, double stddev) {
  return ImageDataset::Create(kernels::Shape{3, 32, 32}, kCifarClasses, mean, stddev,
                              std::move(images.pixels), std::move(images.labels));
}

}  // namespace

bool HoldsCifar(const std::string& path) { return base::Exists(TrainingFile(path, 1)); }

absl::StatusOr<TrainTest> LoadCifarDirectory(const std::string& directory, Sets sets) {
  CifarImages train, test;
  int number = 1;
  do {
    RETURN_IF_ERROR(ReadRecords(TrainingFile(directory, number), train));
  } while (base::Exists(TrainingFile(directory, ++number)));
  if (sets == Sets::kBoth) RETURN_IF_ERROR(ReadRecords(TestFile(directory), test));
  const auto [mean, stddev] = MeasurePixels(train.pixels);
  auto train_set = DatasetOf(std::move(train), mean, stddev);
  RETURN_IF_ERROR(base::Annotate(train_set.status(), absl::StrCat(directory, ": training set")));
  const DataEncoding encoding = {.mean = {mean}, .stddev = {stddev}};
  if (sets == Sets::kTraining) return TrainTest{*std::move(train_set), nullptr, encoding};
  auto test_set = DatasetOf(std::move(test), mean, stddev);
  RETURN_IF_ERROR(base::Annotate(test_set.status(), absl::StrCat(directory, ": test set")));
  return TrainTest{*std::move(train_set), *std::move(test_set), encoding};
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadCifarImages(const std::string& directory,
                                                               const DataEncoding& encoding) {
  CifarImages images;
  RETURN_IF_ERROR(ReadRecords(TestFile(directory), images));
  auto created = DatasetOf(std::move(images), encoding.mean.front(), encoding.stddev.front());
  RETURN_IF_ERROR(base::Annotate(created.status(), directory));
  return *std::move(created);
}

const DataFormat kCifarFormat = {
    .name = "CIFAR",
    .form = "a directory of CIFAR-10 files",
    .matches = [](const DataSource& source) { return HoldsCifar(source.spec); },
    .load = [](const DataSource& source,
               Sets sets) { return LoadCifarDirectory(source.spec, sets); },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t /*classes*/) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(CheckEncodesImages(encoding));
      return LoadCifarImages(source.spec, encoding);
    },
};

}  // namespace stagecoach::engine
