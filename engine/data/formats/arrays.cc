#include "engine/data/formats/arrays.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/mapped_file.h"
#include "engine/data/formats/format.h"
#include "engine/data/npy.h"
#include "engine/data/number_statistics.h"
#include "engine/data/pixels.h"

namespace stagecoach::engine {
namespace {

// Samples as stored in a file; one of `pixels` and `values` is empty.
struct ArraySamples {
  bool are_pixels = false;
  std::vector<int64_t> shape;  // of one sample
  std::vector<uint8_t> pixels;
  std::vector<float> values;
  // Neither if they are unknown, otherwise one of the two.
  std::vector<int32_t> labels;
  std::vector<double> numbers;

  int64_t features() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
  std::string Describe() const {
    return absl::StrCat(are_pixels ? "pixels" : "numbers", " of shape ", NpyShape(shape));
  }
};

// Returns the path of an array, plain or compressed.
std::string ArrayFile(const std::string& directory, absl::string_view name) {
  const std::string plain = absl::StrCat(directory, "/", name, ".npy");
  const std::string compressed = absl::StrCat(plain, ".gz");
  return !base::Exists(plain) && base::Exists(compressed) ? compressed : plain;
}

// A file, and the array in it.
struct MappedArray {
  base::MappedFile file;
  NpyArray array;
};

absl::StatusOr<MappedArray> MapArray(const std::string& path) {
  ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::OpenUncompressed(path, kMaxArrayBytes));
  const absl::string_view contents = file.contents();
  if (std::ssize(contents) > kMaxArrayBytes) {
    return base::DataError(absl::StrFormat("%s: %d bytes, above the limit of %d", path,
                                           contents.size(), kMaxArrayBytes),
                           absl::StatusCode::kResourceExhausted);
  }
  ASSIGN_OR_RETURN(NpyArray array, ParseNpy(path, contents));
  return MappedArray{std::move(file), std::move(array)};
}

// Returns the elements, which are stored as S.
template <typename S, typename T>
absl::StatusOr<std::vector<T>> ReadElements(const std::string& path, const NpyArray& array) {
  RETURN_IF_ERROR(CheckElements(path, array.elements, array.count, sizeof(S)));
  std::vector<T> elements(static_cast<size_t>(array.count));
  const char* from = array.elements.data();
  for (T& element : elements) {
    S stored;
    std::memcpy(&stored, from, sizeof(S));
    element = static_cast<T>(stored);
    from += sizeof(S);
  }
  return elements;
}

// Converts samples of that many places (rows and columns) from (places, channels) to the order
// (channels, places).
template <typename T>
void PutChannelsFirst(int64_t places, int64_t channels, std::vector<T>& elements) {
  std::vector<T> sample(static_cast<size_t>(places * channels));
  for (auto begin = elements.begin(); begin != elements.end(); begin += std::ssize(sample)) {
    std::copy_n(begin, sample.size(), sample.begin());
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t place = 0; place < places; ++place) {
        begin[channel * places + place] = sample[static_cast<size_t>(place * channels + channel)];
      }
    }
  }
}

// Returns whether a sample has the shape of an image whose channels come last, and is as high and
// wide as images are: as an image whose channels come first it would have a width of 1 or 3, as
// signals and small patches do, but those have few channels or few rows.
bool LooksChannelsLast(absl::Span<const int64_t> sample) {
  if (sample.size() != 3 || (sample[2] != 1 && sample[2] != 3)) return false;
  return std::min(sample[0], sample[1]) >= (sample[0] == sample[1] ? 8 : 16);
}

absl::Status CheckSamples(const std::string& path, const NpyArray& array,
                          const ArrayOptions& options) {
  const std::vector<int64_t>& shape = array.shape;
  const auto wrong = [&](absl::string_view expected) {
    return base::DataError(
        absl::StrCat(path, ": an array of shape ", NpyShape(array.shape), ", expected ", expected));
  };
  if (shape.size() < 2 || shape.size() > 4) {
    return wrong(
        "(samples, features), (samples, height, width) or (samples, channels, height, width)");
  }
  if (array.count == 0) return wrong("at least one element");
  if (array.is_fortran) {
    return base::DataError(absl::StrCat(
        path, ": an array in Fortran's order, expected one in C's: save ascontiguousarray of it"));
  }
  const auto sample = absl::MakeConstSpan(shape).subspan(1);
  if (options.channels == ChannelOrder::kLast && sample.size() != 3) {
    return wrong("(samples, height, width, channels), since channels are said to come last");
  }
  const kernels::Shape& taken = options.model_input;
  if (options.channels.has_value() || taken == kernels::Shape(sample)) return absl::OkStatus();
  if (sample.size() == 3 && taken == kernels::Shape{sample[2], sample[0], sample[1]}) {
    return wrong(absl::StrCat("images of shape ", taken.ToString(),
                              ", as the model takes them: --channels last reads them so (in C++, "
                              "ArrayOptions::channels)"));
  }
  if (!LooksChannelsLast(sample)) return absl::OkStatus();
  return base::DataError(absl::StrCat(
      path, ": an array of shape ", NpyShape(shape),
      " may be (samples, channels, height, width) or (samples, height, width, channels): say "
      "which it is, with --channels first or --channels last (in C++, ArrayOptions::channels)"));
}

absl::StatusOr<ArraySamples> ReadSamples(const std::string& path, const ArrayOptions& options) {
  ASSIGN_OR_RETURN(const MappedArray mapped, MapArray(path));
  const NpyArray& array = mapped.array;
  ArraySamples samples = {.are_pixels = array.type == "|u1"};
  if (!samples.are_pixels && array.type != "<f4" && array.type != "<f8") {
    return base::DataError(
        absl::StrCat(path, ": an array of \"", array.type,
                     "\", expected pixels \"|u1\" or numbers \"<f4\" or \"<f8\""));
  }
  RETURN_IF_ERROR(CheckSamples(path, array, options));
  samples.shape.assign(array.shape.begin() + 1, array.shape.end());
  if (samples.are_pixels) {
    ASSIGN_OR_RETURN(samples.pixels, (ReadElements<uint8_t, uint8_t>(path, array)));
  } else if (array.type == "<f4") {
    ASSIGN_OR_RETURN(samples.values, (ReadElements<float, float>(path, array)));
  } else {
    ASSIGN_OR_RETURN(samples.values, (ReadElements<double, float>(path, array)));
  }
  if (options.channels == ChannelOrder::kLast) {
    std::vector<int64_t>& shape = samples.shape;
    PutChannelsFirst(shape[0] * shape[1], shape[2], samples.pixels);
    PutChannelsFirst(shape[0] * shape[1], shape[2], samples.values);
    shape = {shape[2], shape[0], shape[1]};
  }
  return samples;
}

// Calls read(S()) for the type S that the elements have, if that is one of integers.
template <typename Read>
auto ReadIntegers(const std::string& path, const NpyArray& array, Read read)
    -> decltype(read(uint8_t())) {
  if (array.type == "|u1") return read(uint8_t());
  if (array.type == "|i1") return read(int8_t());
  if (array.type == "<u2") return read(uint16_t());
  if (array.type == "<i2") return read(int16_t());
  if (array.type == "<u4") return read(uint32_t());
  if (array.type == "<i4") return read(int32_t());
  if (array.type == "<u8") return read(uint64_t());
  if (array.type == "<i8") return read(int64_t());
  return base::DataError(
      absl::StrCat(path, ": an array of \"", array.type,
                   "\", expected little-endian integers as labels that are classes; numbers are "
                   "predicted with --loss mse (in C++, LabelKind::kNumbers)"));
}

template <typename S>
absl::StatusOr<std::vector<int32_t>> ReadClasses(const std::string& path, const NpyArray& array) {
  ASSIGN_OR_RETURN(const std::vector<S> stored, (ReadElements<S, S>(path, array)));
  std::vector<int32_t> labels;
  labels.reserve(stored.size());
  for (const S label : stored) {
    if (std::cmp_less(label, 0) || std::cmp_greater_equal(label, kMaxArrayClasses)) {
      return base::DataError(absl::StrFormat("%s: label of row %d is %d, expected 0 to %d", path,
                                             std::ssize(labels), label, kMaxArrayClasses - 1));
    }
    labels.push_back(static_cast<int32_t>(label));
  }
  return labels;
}

absl::StatusOr<std::vector<double>> ReadNumbers(const std::string& path, const NpyArray& array) {
  if (array.type == "<f4") return ReadElements<float, double>(path, array);
  if (array.type == "<f8") return ReadElements<double, double>(path, array);
  return ReadIntegers(path, array, [&]<typename S>(S) -> absl::StatusOr<std::vector<double>> {
    return ReadElements<S, double>(path, array);
  });
}

absl::Status ReadLabels(const std::string& path, LabelKind kind, ArraySamples& samples) {
  ASSIGN_OR_RETURN(const MappedArray mapped, MapArray(path));
  const NpyArray& array = mapped.array;
  if (array.shape.size() != 1) {
    return base::DataError(absl::StrCat(path, ": an array of shape ", NpyShape(array.shape),
                                        ", expected one label for each sample"));
  }
  if (kind == LabelKind::kClasses) {
    ASSIGN_OR_RETURN(samples.labels, ReadIntegers(path, array, [&]<typename S>(S) {
                       return ReadClasses<S>(path, array);
                     }));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(samples.numbers, ReadNumbers(path, array));
  for (size_t row = 0; row < samples.numbers.size(); ++row) {
    // As for a table: statistics of larger ones would not be finite.
    if (std::abs(samples.numbers[row]) <= std::numeric_limits<float>::max()) continue;
    return base::DataError(absl::StrFormat("%s: label of row %d is %g, expected a finite number",
                                           path, row, samples.numbers[row]));
  }
  return absl::OkStatus();
}

// `part` is "train" or "test".
absl::StatusOr<ArraySamples> ReadLabeledSamples(const std::string& directory,
                                                absl::string_view part,
                                                const ArrayOptions& options) {
  const std::string x = ArrayFile(directory, absl::StrCat("x_", part));
  const std::string y = ArrayFile(directory, absl::StrCat("y_", part));
  ASSIGN_OR_RETURN(ArraySamples samples, ReadSamples(x, options));
  RETURN_IF_ERROR(ReadLabels(y, options.labels, samples));
  const int64_t elements = std::ssize(samples.pixels) + std::ssize(samples.values);
  const int64_t rows = elements / samples.features();
  const int64_t labels = std::ssize(samples.labels) + std::ssize(samples.numbers);
  if (rows != labels) {
    return base::DataError(absl::StrFormat(
        "%s holds %d samples but %s holds %d labels, expected as many", x, rows, y, labels));
  }
  return samples;
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetOfArray(ArraySamples samples, int64_t classes,
                                                              const DataEncoding& encoding) {
  const std::vector<int64_t>& extents = samples.shape;
  const kernels::Shape shape = extents.size() == 2 ? kernels::Shape{1, extents[0], extents[1]}
                                                   : kernels::Shape(absl::MakeConstSpan(extents));
  std::shared_ptr<const Dataset> data;
  if (samples.are_pixels) {
    ASSIGN_OR_RETURN(
        data, ImageDataset::Create(shape, classes, encoding.mean.front(), encoding.stddev.front(),
                                   std::move(samples.pixels), std::move(samples.labels)));
  } else {
    ASSIGN_OR_RETURN(data, TableDataset::Create(shape, classes, std::move(samples.values),
                                                std::move(samples.labels)));
  }
  if (samples.numbers.empty()) return data;
  std::vector<float> numbers;
  for (const double number : samples.numbers) {
    numbers.push_back(static_cast<float>(encoding.Standardized(number)));
  }
  return LabeledByNumbers(std::move(data), std::move(numbers));
}

}  // namespace

bool HoldsArrays(const std::string& path) {
  return base::Exists(ArrayFile(path, "x_train")) || base::Exists(ArrayFile(path, "x_test"));
}

absl::StatusOr<TrainTest> LoadArrays(const std::string& directory, const ArrayOptions& options) {
  ASSIGN_OR_RETURN(ArraySamples train, ReadLabeledSamples(directory, "train", options));
  ArraySamples test;
  if (options.sets == Sets::kBoth) {
    ASSIGN_OR_RETURN(test, ReadLabeledSamples(directory, "test", options));
    if (train.shape != test.shape || train.are_pixels != test.are_pixels) {
      return base::DataError(absl::StrCat(directory, ": test samples are ", test.Describe(),
                                          ", expected ", train.Describe(),
                                          " as in the training set"));
    }
  }
  DataEncoding encoding;
  if (train.are_pixels) {
    const PixelStatistics statistics = MeasurePixels(train.pixels);
    encoding = {.mean = {statistics.mean}, .stddev = {statistics.stddev}};
  }
  int64_t classes = 0;
  if (options.labels == LabelKind::kClasses) {
    classes = 1 + *std::max_element(train.labels.begin(), train.labels.end());
  } else {
    const NumberStatistics statistics = MeasureNumbers(train.numbers);
    RETURN_IF_ERROR(CheckLabelsDiffer(ArrayFile(directory, "y_train"), statistics));
    encoding.label_mean = {statistics.mean};
    encoding.label_stddev = {statistics.stddev};
  }
  auto train_set = DatasetOfArray(std::move(train), classes, encoding);
  RETURN_IF_ERROR(base::Annotate(train_set.status(), absl::StrCat(directory, ": training set")));
  if (options.sets == Sets::kTraining) return TrainTest{*std::move(train_set), nullptr, encoding};
  auto test_set = DatasetOfArray(std::move(test), classes, encoding);
  RETURN_IF_ERROR(base::Annotate(test_set.status(), absl::StrCat(directory, ": test set")));
  return TrainTest{*std::move(train_set), *std::move(test_set), std::move(encoding)};
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadArraySamples(const std::string& directory,
                                                                const DataEncoding& encoding,
                                                                int64_t classes,
                                                                const ArrayOptions& options) {
  const bool has_labels = base::Exists(ArrayFile(directory, "y_test"));
  const bool are_numbers = encoding.labels_are_numbers();
  ArrayOptions own = options;
  own.labels = are_numbers ? LabelKind::kNumbers : LabelKind::kClasses;
  ASSIGN_OR_RETURN(ArraySamples samples, has_labels
                                             ? ReadLabeledSamples(directory, "test", own)
                                             : ReadSamples(ArrayFile(directory, "x_test"), own));
  const size_t means = samples.are_pixels ? 1 : 0;
  if (!encoding.columns.empty() || encoding.vocabulary > 0 || encoding.mean.size() != means) {
    return base::DataError(
        absl::StrCat("the model was not trained on ", samples.are_pixels ? "pixels" : "numbers",
                     " as ", ArrayFile(directory, "x_test"),
                     " has them: it is not known how to encode these for it"),
        absl::StatusCode::kFailedPrecondition);
  }
  auto created =
      DatasetOfArray(std::move(samples), has_labels && !are_numbers ? classes : 0, encoding);
  RETURN_IF_ERROR(base::Annotate(created.status(), directory));
  return created;
}

const DataFormat kArrayFormat = {
    .name = "npy",
    .form = "a directory of .npy files",
    .matches = [](const DataSource& source) { return HoldsArrays(source.spec); },
    .load =
        [](const DataSource& source, Sets sets) {
          return LoadArrays(source.spec, {.sets = sets,
                                          .labels = source.labels,
                                          .channels = source.channels,
                                          .model_input = source.model_input});
        },
    .load_samples =
        [](const DataSource& source, const DataEncoding& encoding, int64_t classes) {
          return LoadArraySamples(source.spec, encoding, classes,
                                  {.channels = source.channels, .model_input = source.model_input});
        },
    .has_numbers = true,
};

}  // namespace stagecoach::engine
