#include "engine/data/formats/load.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/nearest.h"
#include "engine/data/data_files.h"
#include "engine/data/formats/format.h"

namespace stagecoach::engine {
namespace {

// Mentions a similar file next to it that may be meant.
absl::Status NotThere(const std::string& spec) {
  const std::filesystem::path path(spec);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::string nearest = base::Nearest(path.filename().string(), names);
  return base::DataError(
      absl::StrCat(spec, ": no such file or directory",
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")),
      absl::StatusCode::kNotFound);
}

// Returns an error for Parquet, which no library of Debian 12 reads, whatever it is called.
absl::Status CheckIsNotParquet(const std::string& spec) {
  constexpr absl::string_view kMagic = "PAR1";
  if (!base::Exists(spec) || IsDirectory(spec) || base::IsStream(spec)) return absl::OkStatus();
  char begin[kMagic.size()] = {};
  if (!std::ifstream(spec, std::ios::binary).read(begin, sizeof(begin)) ||
      absl::string_view(begin, sizeof(begin)) != kMagic) {
    return absl::OkStatus();
  }
  const std::string csv = absl::StrCat(absl::StripSuffix(spec, ".parquet"), ".csv");
  return base::DataError(absl::StrCat(
      spec,
      ": is a Parquet file, which is not read; this makes a table of it: python3 -c \"import "
      "pandas; pandas.read_parquet('",
      spec, "').to_csv('", csv, "', index=False)\""));
}

// Several files must be of one format, and one that takes them.
absl::Status CheckIsOneFormat(const DataSource& source, const std::vector<std::string>& files,
                              const DataFormat& format) {
  if (files.size() == 1) return absl::OkStatus();
  if (!format.takes_files) {
    return base::DataError(absl::StrCat(files.front(), " and ", files.size() - 1,
                                        files.size() == 2 ? " other" : " others", ": the format ",
                                        format.name, " takes one name; several are read of ",
                                        DescribeDataForms(&DataFormat::takes_files)));
  }
  for (const std::string& file : files) {
    if (IsDirectory(file)) {
      return base::DataError(
          absl::StrCat(file, " is a directory, and not one whose files are all of the format ",
                       format.name, ", so it cannot be one of several"));
    }
    DataSource one = source;
    one.spec = file;
    const DataFormat* const own = FindDataFormat(one);
    if (own == &format) continue;
    // IDX may be in any file.
    const bool is_known = own != nullptr && own->takes_files;
    return base::DataError(absl::StrCat(
        file, is_known ? absl::StrCat(": its format is ", own->name) : ": its format is not known",
        ", and that of ", files.front(), " is ", format.name,
        ": several files of data have one format"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const DataFormat*> FormatOf(const DataSource& source) {
  if (source.spec.empty()) {
    return base::DataError(absl::StrCat("no data given, expected ", DescribeDataForms()));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> files, DataFilesOf(source.spec));
  for (const std::string& file : files) {
    if (files.size() > 1 && !base::Exists(file)) return NotThere(file);
    RETURN_IF_ERROR(CheckIsNotParquet(file));
  }
  DataSource first = source;
  if (files.size() > 1) first.spec = files.front();
  const DataFormat* const format = FindDataFormat(first);
  if (format == nullptr) {
    return base::Exists(files.front()) ? UnknownDataFormat(files.front()) : NotThere(files.front());
  }
  RETURN_IF_ERROR(CheckIsOneFormat(source, files, *format));
  return format;
}

// Loads the test samples of `spec` itself only if there is no test_spec.
absl::StatusOr<TrainTest> LoadAll(const DataSource& source) {
  ASSIGN_OR_RETURN(const DataFormat* const format, FormatOf(source));
  if (source.labels == LabelKind::kNumbers && !format->has_numbers) {
    return base::DataError(absl::StrCat(source.spec,
                                        ": has classes; labels that are numbers are read from ",
                                        DescribeDataForms(&DataFormat::has_numbers)));
  }
  if (source.augmentation.cuts_boxes && !format->has_image_files) {
    return base::DataError(
        absl::StrCat(source.spec, ": resized-crop is for images of any size, which are read from ",
                     DescribeDataForms(&DataFormat::has_image_files), "; crop is for all images"));
  }
  return format->load(source, source.test_spec.empty() ? Sets::kBoth : Sets::kTraining);
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadAllSamples(const DataSource& source,
                                                              const DataEncoding& encoding,
                                                              int64_t classes) {
  ASSIGN_OR_RETURN(const DataFormat* const format, FormatOf(source));
  RETURN_IF_ERROR(CheckEncodes(
      format->has_numbers || !encoding.labels_are_numbers(), "classes",
      absl::StrCat("it predicts numbers, of ", DescribeDataForms(&DataFormat::has_numbers))));
  return format->load_samples(source, encoding, classes);
}

// To the caller of LoadData, a file above its reader's limit is one more kind of bad content.
absl::Status AsContentError(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return base::DataError(status.message());
}

}  // namespace

const DataFormat* FindDataFormat(const DataSource& source) {
  if (source.spec.empty()) return nullptr;
  for (const DataFormat* const format : kDataFormats) {
    if (format->matches(source)) return format;
  }
  return nullptr;
}

std::string DescribeDataForms(bool DataFormat::*property) {
  std::vector<absl::string_view> forms;
  for (const DataFormat* const format : kDataFormats) {
    if (property == nullptr || format->*property) forms.insert(forms.begin(), format->form);
  }
  std::string list;
  for (size_t i = 0; i < forms.size(); ++i) {
    const bool is_last = i + 1 == forms.size();
    const char* const separator = !is_last ? ", " : forms.size() > 2 ? ", or " : " or ";
    absl::StrAppend(&list, i == 0 ? "" : separator, forms[i]);
  }
  return list;
}

absl::Status UnknownDataFormat(const std::string& spec) {
  const bool is_directory = IsDirectory(spec);
  return base::DataError(absl::StrCat(
      spec, is_directory ? " is a directory without files of a" : " is a file of no",
      " known form, expected ", DescribeDataForms(),
      is_directory ? ", or a directory of .csv, .jsonl, .txt, .bin or .npy files alone" : ""));
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::Status CheckEncodes(bool fits, absl::string_view kind, absl::string_view missing) {
  if (fits) return absl::OkStatus();
  return base::DataError(absl::StrCat("the model was not trained on ", kind, ": ", missing),
                         absl::StatusCode::kFailedPrecondition);
}

absl::Status CheckEncodesImages(const DataEncoding& encoding) {
  return CheckEncodes(encoding.columns.empty() && encoding.mean.size() == 1, "images",
                      "it is not known how to standardize pixels for it");
}

absl::StatusOr<std::shared_ptr<const Dataset>> SomeTrainingRows(
    const DataSource& source, std::shared_ptr<const Dataset> train, int64_t rows) {
  const DataFormat* const format = FindDataFormat(source);
  const bool is_sorted = format != nullptr && format->has_image_files;
  return is_sorted ? SpreadSubset(std::move(train), rows) : Subset(std::move(train), rows);
}

bool IsDivided(const DataSource& source) {
  const DataFormat* const format = FindDataFormat(source);
  if (format == nullptr || format->test_fraction == 0.0) return false;
  return format->is_divided != nullptr ? format->is_divided(source)
                                       : !IsDirectory(FirstDataFile(source.spec));
}

absl::StatusOr<TrainTest> LoadData(const DataSource& source) {
  absl::StatusOr<TrainTest> loaded = LoadAll(source);
  RETURN_IF_ERROR(AsContentError(loaded.status()));
  TrainTest data = *std::move(loaded);
  if (!source.test_spec.empty()) {
    DataSource test = source;
    test.spec = source.test_spec;
    test.test_spec.clear();
    test.tokens.context = data.train->features();
    ASSIGN_OR_RETURN(data.test, LoadSamples(test, data.encoding, data.train->classes()));
    if (data.test->spec().target.kind == TargetSpec::Kind::kNone) {
      return base::DataError(
          absl::StrCat(source.test_spec, ": has no labels, which a test set needs"));
    }
  }
  if (source.augmentation.any()) {
    auto augmented = Augmented(data.train, source.augmentation);
    RETURN_IF_ERROR(base::Annotate(augmented.status(), source.spec));
    data.train = *std::move(augmented);
  }
  if (source.train_rows == 0) return data;
  auto subset = SomeTrainingRows(source, data.train, source.train_rows);
  RETURN_IF_ERROR(base::Annotate(subset.status(), absl::StrCat(source.spec, ": training rows")));
  data.train = *std::move(subset);
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadSamples(const DataSource& source,
                                                           const DataEncoding& encoding,
                                                           int64_t classes) {
  auto samples = LoadAllSamples(source, encoding, classes);
  RETURN_IF_ERROR(AsContentError(samples.status()));
  return samples;
}

}  // namespace stagecoach::engine
