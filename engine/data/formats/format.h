#ifndef STAGECOACH_ENGINE_DATA_FORMATS_FORMAT_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_FORMAT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/dataset.h"
#include "engine/data/formats/load.h"

namespace stagecoach::engine {

// A format of data: a row of kDataFormats, which is defined beside its reader.
struct DataFormat {
  const char* name = nullptr;  // in help: "csv"
  const char* form = nullptr;  // in messages: "a .csv file"
  // Returns whether the data at source.spec, which is not empty, have this format, unless they have
  // one above it in the table. The first of several files decides.
  bool (*matches)(const DataSource& source) = nullptr;
  // Loads both sets, or the training set alone. Errors are those of LoadData, or ResourceExhausted
  // for a file above the reader's limit.
  absl::StatusOr<TrainTest> (*load)(const DataSource& source, Sets sets) = nullptr;
  // Loads samples as LoadSamples does. Errors as for `load`.
  absl::StatusOr<std::shared_ptr<const Dataset>> (*load_samples)(const DataSource& source,
                                                                 const DataEncoding& encoding,
                                                                 int64_t classes) = nullptr;
  bool has_numbers = false;       // labels may be numbers, and not only classes
  bool has_label_column = false;  // DataSource::label_column says which column has the labels
  bool has_image_files = false;   // images are of any size, and become those of image_size
  bool takes_files = false;       // several files are one data set (engine/data/data_files.h)
  // The share of a file that is the test set, by default; 0: there is a test set of its own.
  double test_fraction = 0.0;
  // Returns whether the test set is a share of the data; null: it is, if they are one file.
  bool (*is_divided)(const DataSource& source) = nullptr;
};

extern const DataFormat kSyntheticFormat, kChatFormat, kTokenFormat;
extern const DataFormat kCsvFormat, kArrayFormat, kCifarFormat, kIdxFormat;
extern const DataFormat kImageFolderFormat;

// If data have several of the formats, the first counts; IDX is the last, since any file may have
// it. Messages and help list the last one first.
inline constexpr const DataFormat* kDataFormats[] = {
    &kSyntheticFormat, &kChatFormat,  &kTokenFormat,       &kCsvFormat,
    &kArrayFormat,     &kCifarFormat, &kImageFolderFormat, &kIdxFormat,
};

// Returns null if the source has none of the formats.
const DataFormat* FindDataFormat(const DataSource& source);

// Returns what to choose from, as messages say it: "a .csv file or a directory of .npy files". With
// `property`, only formats that have it are listed.
std::string DescribeDataForms(bool DataFormat::*property = nullptr);

// Returns an error for data that have no known format, although there is something at `spec`.
absl::Status UnknownDataFormat(const std::string& spec);

// Returns whether that is a directory, or a link to one.
bool IsDirectory(const std::string& path);

// Returns FailedPrecondition unless the model's encoding `fits` data of that kind; `missing` says
// why it does not.
absl::Status CheckEncodes(bool fits, absl::string_view kind, absl::string_view missing);
// Does the same for images, standardized by one mean.
absl::Status CheckEncodesImages(const DataEncoding& encoding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_FORMAT_H_
