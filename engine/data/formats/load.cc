#include "engine/data/formats/load.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "engine/data/formats/arrays.h"
#include "engine/data/formats/cifar.h"
#include "engine/data/formats/csv.h"
#include "engine/data/formats/idx.h"
#include "engine/data/synthetic.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kSynthetic = "synthetic:";

constexpr char kForms[] =
    "a directory of IDX, CIFAR-10 or .npy files, a .csv or .txt file, tokens in .bin or .npy files "
    "or in a directory of them, any text with a tokenizer, or "
    "\"synthetic:ROWSxFEATURESxCLASSES\"";

absl::Status NoData() { return base::DataError(absl::StrCat("no data given, expected ", kForms)); }

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

// Checks a spec that has none of the other forms. `takes_file`: a file of images is accepted.
absl::Status CheckMayBeIdx(const std::string& spec, bool takes_file) {
  if (!base::Exists(spec)) {
    return spec == kFashionMnistDirectory ? absl::OkStatus() : NotThere(spec);
  }
  const bool is_file = !base::IsFolder(spec);
  if (is_file && takes_file) return absl::OkStatus();
  if (is_file || !HoldsIdx(spec)) {
    return base::DataError(
        absl::StrCat(spec, is_file ? " is a file of no" : " is a directory without files of a",
                     " known form, expected ", kForms));
  }
  return absl::OkStatus();
}

// Returns whether labels there may be numbers, and not only classes.
bool MayHaveNumbers(const std::string& spec) {
  return spec.empty() || absl::EndsWith(spec, ".csv") || HoldsArrays(spec);
}

absl::Status CheckMayBeNumbers(const DataSource& source) {
  if (source.labels == LabelKind::kClasses || MayHaveNumbers(source.spec)) return absl::OkStatus();
  return base::DataError(
      absl::StrCat(source.spec, ": has classes; labels that are numbers are read from a .csv file ",
                   "or from arrays"));
}

ArrayOptions ArrayOptionsOf(const DataSource& source, Sets sets) {
  return {.sets = sets,
          .labels = source.labels,
          .channels = source.channels,
          .model_input = source.model_input};
}

// The test samples of `spec` itself are read if there is no test_spec.
absl::StatusOr<TrainTest> LoadAll(const DataSource& source) {
  RETURN_IF_ERROR(CheckMayBeNumbers(source));
  const Sets sets = source.test_spec.empty() ? Sets::kBoth : Sets::kTraining;
  absl::string_view rest = source.spec;
  if (absl::ConsumePrefix(&rest, kSynthetic)) {
    ASSIGN_OR_RETURN(const SyntheticSpec spec, ParseSyntheticSpec(rest));
    return source.has_shapes_only ? MakeSyntheticShapes(spec) : MakeSynthetic(spec, source.seed);
  }
  if (HoldsTokens(source.spec, !source.tokens.tokenizer.empty())) {
    TokenOptions tokens = source.tokens;
    tokens.sets = sets;
    tokens.test_fraction = source.test_fraction.value_or(kDefaultTestFraction);
    return LoadTokens(source.spec, tokens);
  }
  if (absl::EndsWith(source.spec, ".csv")) {
    CsvOptions options;
    options.label_column = source.label_column;
    options.labels = source.labels;
    options.sets = sets;
    options.test_fraction = source.test_fraction.value_or(kDefaultCsvTestFraction);
    options.seed = source.seed;
    return LoadCsv(source.spec, options);
  }
  if (source.spec.empty()) return NoData();
  if (HoldsArrays(source.spec)) return LoadArrays(source.spec, ArrayOptionsOf(source, sets));
  if (HoldsCifar(source.spec)) return LoadCifarDirectory(source.spec, sets);
  RETURN_IF_ERROR(CheckMayBeIdx(source.spec, /*takes_file=*/false));
  return LoadIdxDirectory(source.spec, sets);
}

absl::Status CheckEncoding(bool fits, absl::string_view kind, absl::string_view missing) {
  if (fits) return absl::OkStatus();
  return base::DataError(absl::StrCat("the model was not trained on ", kind, ": ", missing),
                         absl::StatusCode::kFailedPrecondition);
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadAllSamples(const DataSource& source,
                                                              const DataEncoding& encoding,
                                                              int64_t classes) {
  RETURN_IF_ERROR(CheckEncoding(MayHaveNumbers(source.spec) || !encoding.labels_are_numbers(),
                                "classes", "it predicts numbers, of a .csv file or arrays"));
  if (absl::StartsWith(source.spec, kSynthetic)) {
    RETURN_IF_ERROR(
        CheckEncoding(encoding.mean.empty(), "synthetic data", "its features were standardized"));
    RETURN_IF_ERROR(CheckEncoding(encoding.vocabulary == 0, "synthetic data",
                                  "it is fed with tokens, not with numbers"));
    ASSIGN_OR_RETURN(const TrainTest data, LoadAll(source));
    return data.test;
  }
  if (HoldsTokens(source.spec, !source.tokens.tokenizer.empty())) {
    return LoadTokenSamples(source.spec, source.tokens, encoding);
  }
  if (absl::EndsWith(source.spec, ".csv")) {
    RETURN_IF_ERROR(CheckEncoding(!encoding.columns.empty(), "a table",
                                  "it is not known which columns to feed it with"));
    return LoadCsvSamples(source.spec, {.label_column = source.label_column}, encoding, classes);
  }
  if (source.spec.empty()) return NoData();
  if (!base::Exists(source.spec)) return NotThere(source.spec);
  if (HoldsArrays(source.spec)) {
    return LoadArraySamples(source.spec, encoding, classes, ArrayOptionsOf(source, Sets::kBoth));
  }
  RETURN_IF_ERROR(CheckEncoding(encoding.columns.empty() && encoding.mean.size() == 1, "images",
                                "it is not known how to standardize pixels for it"));
  if (HoldsCifar(source.spec)) return LoadCifarImages(source.spec, encoding);
  RETURN_IF_ERROR(CheckMayBeIdx(source.spec, /*takes_file=*/true));
  auto images = LoadIdxImages(source.spec, encoding, classes);
  if (absl::IsInvalidArgument(images.status()) && !base::IsFolder(source.spec)) {
    return base::WithMessage(images.status(),
                             absl::StrCat(images.status().message(), "; other forms are ", kForms));
  }
  return images;
}

// To the caller of LoadData, a file above its reader's limit is one more kind of bad content.
absl::Status AsContentError(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return base::DataError(status.message());
}

}  // namespace

bool IsDivided(const DataSource& source) {
  if (!HoldsTokens(source.spec, !source.tokens.tokenizer.empty())) {
    return absl::EndsWith(source.spec, ".csv");
  }
  std::error_code error;
  return !std::filesystem::is_directory(source.spec, error);
}

absl::StatusOr<TrainTest> LoadData(const DataSource& source) {
  absl::StatusOr<TrainTest> loaded = LoadAll(source);
  RETURN_IF_ERROR(AsContentError(loaded.status()));
  TrainTest data = *std::move(loaded);
  if (!source.test_spec.empty()) {
    DataSource test = source;
    test.spec = source.test_spec;
    test.test_spec.clear();
    ASSIGN_OR_RETURN(data.test, LoadSamples(test, data.encoding, data.train->classes()));
    if (data.test->spec().target.kind == TargetSpec::Kind::kNone) {
      return base::DataError(
          absl::StrCat(source.test_spec, ": has no labels, which a test set needs"));
    }
  }
  if (source.train_rows == 0) return data;
  auto subset = Subset(data.train, source.train_rows);
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
