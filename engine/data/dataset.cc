#include "engine/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/pixels.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;

namespace {

constexpr char kFeatures[] = "features";

absl::Status CheckLabels(const std::vector<int32_t>& labels, int64_t classes) {
  for (size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0 || labels[row] >= classes) {
      return base::DataError(absl::StrFormat("label of row %d is %d, expected 0 to %d", row,
                                             labels[row], classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShape(int64_t features, int64_t classes, size_t values,
                        const std::vector<int32_t>& labels) {
  const bool is_labeled = classes != 0 || !labels.empty();
  if (is_labeled ? labels.empty() : values == 0) {
    return base::DataError("no rows, expected at least one");
  }
  if (features < 1) {
    return base::DataError(absl::StrCat(features, " features a row, expected at least one"));
  }
  if (is_labeled && classes < 2) {
    return base::DataError(
        absl::StrCat("fewer than 2 classes (", classes, "): there is nothing to tell apart"));
  }
  // Divides instead of multiplying, which could overflow.
  const size_t width = static_cast<size_t>(features);
  if (values % width != 0 || (is_labeled && values / width != labels.size())) {
    return base::DataError(is_labeled
                               ? absl::StrFormat("%d values, expected %d labels x %d features",
                                                 values, labels.size(), features)
                               : absl::StrFormat("%d values, expected %d a row", values, features));
  }
  return CheckLabels(labels, classes);
}

SampleSpec SpecOf(TensorSpec features, int64_t classes) {
  SampleSpec spec;
  spec.inputs.push_back(std::move(features));
  if (classes > 0) spec.target = TargetSpec::ClassLabel(classes);
  return spec;
}

void CopyLabel(const std::vector<int32_t>& labels, int64_t row, std::byte* out) {
  if (labels.empty()) return;  // a target of no bytes
  std::memcpy(out, &labels[static_cast<size_t>(row)], sizeof(int32_t));
}

// Some rows of another set.
class SomeRows final : public Dataset {
 public:
  enum class Which : uint8_t { kFirst, kSpread };
  SomeRows(std::shared_ptr<const Dataset> whole, int64_t rows, Which which)
      : Dataset(whole->spec()), whole_(std::move(whole)), rows_(rows), which_(which) {}

  int64_t rows() const override { return rows_; }
  std::shared_ptr<const Dataset> ForEpoch(uint64_t seed, int64_t epoch) const override {
    std::shared_ptr<const Dataset> whole = whole_->ForEpoch(seed, epoch);
    if (whole == nullptr) return nullptr;
    return std::make_shared<const SomeRows>(std::move(whole), rows_, which_);
  }
  int64_t AnswersOf(int64_t row) const override { return whole_->AnswersOf(RowOf(row)); }
  std::string NameOf(int64_t row) const override { return whole_->NameOf(RowOf(row)); }
  void WillRead(absl::Span<const int64_t> rows) const override {
    std::vector<int64_t> rows_of_whole;
    for (const int64_t row : rows) rows_of_whole.push_back(RowOf(row));
    whole_->WillRead(rows_of_whole);
  }
  absl::Status ReadStatus() const override { return whole_->ReadStatus(); }

 private:
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    const int64_t bytes = spec().inputs[static_cast<size_t>(i)].bytes();
    whole_->CopyInput(i, RowOf(row), absl::MakeSpan(out, static_cast<size_t>(bytes)));
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    whole_->CopyTarget(RowOf(row), absl::MakeSpan(out, static_cast<size_t>(spec().target.bytes())));
  }

  void ReadDocuments(int64_t row, absl::Span<int32_t> out) const override {
    whole_->CopyDocuments(RowOf(row), out);
  }

  int64_t RowOf(int64_t row) const {
    if (which_ == Which::kFirst) return row;
    // Computes row * whole rows / rows_, without a product that could overflow.
    return row * (whole_->rows() / rows_) + row * (whole_->rows() % rows_) / rows_;
  }

  const std::shared_ptr<const Dataset> whole_;
  const int64_t rows_;
  const Which which_;
};

// Another set, with targets.
class Labeled final : public Dataset {
 public:
  Labeled(std::shared_ptr<const Dataset> samples, std::vector<float> numbers, int64_t labels)
      : Dataset({.inputs = samples->spec().inputs,
                 .target = {TargetSpec::Kind::kValues, labels == 1 ? Shape{} : Shape{labels}}}),
        samples_(std::move(samples)),
        numbers_(std::move(numbers)) {}

  int64_t rows() const override { return samples_->rows(); }

 private:
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    const int64_t bytes = spec().inputs[static_cast<size_t>(i)].bytes();
    samples_->CopyInput(i, row, absl::MakeSpan(out, static_cast<size_t>(bytes)));
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    const auto labels = static_cast<size_t>(spec().target.shape.elements());
    std::memcpy(out, &numbers_[static_cast<size_t>(row) * labels], labels * sizeof(float));
  }

  const std::shared_ptr<const Dataset> samples_;
  const std::vector<float> numbers_;
};

absl::Status CheckHas(const Dataset& dataset, int64_t rows) {
  if (rows >= 1 && rows <= dataset.rows()) return absl::OkStatus();
  return base::DataError(
      absl::StrCat("asked for ", rows, " rows of a set that has ", dataset.rows()));
}

}  // namespace

Dataset::~Dataset() = default;

void Dataset::CheckRow(int64_t row) const {
  STAGECOACH_CHECK(row >= 0 && row < rows(),
                   absl::StrCat("row ", row, " of a set of ", rows(), " rows"));
}

void Dataset::CopyInput(int i, int64_t row, absl::Span<std::byte> out) const {
  CheckRow(row);
  STAGECOACH_CHECK(static_cast<int64_t>(out.size()) == input(i).bytes(),
                   absl::StrCat("room for ", out.size(), " bytes, expected ", input(i).bytes()));
  ReadInput(i, row, out.data());
}

void Dataset::CopyTarget(int64_t row, absl::Span<std::byte> out) const {
  CheckRow(row);
  STAGECOACH_CHECK(
      static_cast<int64_t>(out.size()) == spec_.target.bytes(),
      absl::StrCat("room for ", out.size(), " bytes, expected ", spec_.target.bytes()));
  ReadTarget(row, out.data());
}

void Dataset::CopyDocuments(int64_t row, absl::Span<int32_t> out) const {
  CheckRow(row);
  STAGECOACH_CHECK(static_cast<int64_t>(out.size()) == features(),
                   absl::StrCat("room for ", out.size(), " positions, expected ", features()));
  if (spec_.has_documents) return ReadDocuments(row, out);
  std::fill(out.begin(), out.end(), 0);
}

void Dataset::ReadDocuments(int64_t /*row*/, absl::Span<int32_t> /*out*/) const {
  STAGECOACH_CHECK(false, "the data set does not say what its documents are");
}

void Dataset::CopyNumbers(int i, int64_t row, absl::Span<float> out) const {
  CheckRow(row);
  const TensorSpec& tensor = input(i);
  const int64_t count = tensor.shape.elements();
  STAGECOACH_CHECK(static_cast<int64_t>(out.size()) == count,
                   absl::StrCat("room for ", out.size(), " floats, expected ", count));
  auto* const place = reinterpret_cast<std::byte*>(out.data());
  if (tensor.type == DType::kFloat32) return ReadInput(i, row, place);
  STAGECOACH_CHECK(tensor.type == DType::kUint8, "ids are no numbers");
  // The bytes go to the end of the space that their values fill from the front: each is read before
  // it is overwritten.
  std::byte* const bytes = place + count * (SizeOf(DType::kFloat32) - SizeOf(DType::kUint8));
  ReadInput(i, row, bytes);
  for (size_t k = 0; k < out.size(); ++k) {
    out[k] = tensor.value_of_byte[std::to_integer<size_t>(bytes[k])];
  }
}

int64_t CountAnswers(const Dataset& data, absl::Span<const int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [&](int64_t count, int64_t row) { return count + data.AnswersOf(row); });
}

double WeighAnswers(const Dataset& data, absl::Span<const int64_t> rows,
                    absl::Span<const float> class_weights) {
  if (class_weights.empty()) return 0.0;
  std::vector<int32_t> labels(static_cast<size_t>(data.spec().target.answers()));
  double sum = 0.0;
  for (const int64_t row : rows) {
    data.CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(labels.data()),
                                        labels.size() * sizeof(int32_t)));
    for (const int32_t label : labels) {
      const bool is_class = label >= 0 && label < std::ssize(class_weights);
      if (is_class) sum += static_cast<double>(class_weights[static_cast<size_t>(label)]);
    }
  }
  return sum;
}

int32_t Dataset::label(int64_t row) const {
  STAGECOACH_CHECK(spec_.target == TargetSpec::ClassLabel(classes()), Describe(spec_.target));
  int32_t label = 0;
  CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(&label), sizeof(label)));
  return label;
}

float Dataset::number(int64_t row) const {
  STAGECOACH_CHECK(spec_.target == TargetSpec{TargetSpec::Kind::kValues}, Describe(spec_.target));
  float number = 0.0F;
  CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(&number), sizeof(number)));
  return number;
}

TableDataset::TableDataset(SampleSpec spec, std::vector<float> values, std::vector<int32_t> labels)
    : Dataset(std::move(spec)), values_(std::move(values)), labels_(std::move(labels)) {}

absl::StatusOr<std::shared_ptr<const TableDataset>> TableDataset::Create(
    const Shape& sample, int64_t classes, std::vector<float> values, std::vector<int32_t> labels) {
  const int64_t features = sample.elements();
  RETURN_IF_ERROR(CheckShape(features, classes, values.size(), labels));
  const auto is_finite = [](float value) { return std::isfinite(value); };
  const auto bad = std::find_if_not(values.begin(), values.end(), is_finite);
  if (bad != values.end()) {
    const int64_t index = bad - values.begin();
    return base::DataError(
        absl::StrFormat("value of row %d, feature %d is %g, expected a finite number",
                        index / features, index % features, *bad));
  }
  return std::shared_ptr<const TableDataset>(new TableDataset(
      SpecOf({.name = kFeatures, .shape = sample}, classes), std::move(values), std::move(labels)));
}

void TableDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  std::memcpy(out, values_.data() + row * features(),
              static_cast<size_t>(features() * SizeOf(DType::kFloat32)));
}

void TableDataset::ReadTarget(int64_t row, std::byte* out) const { CopyLabel(labels_, row, out); }

ImageDataset::ImageDataset(SampleSpec spec, double mean, double stddev, std::vector<uint8_t> pixels,
                           std::vector<int32_t> labels)
    : Dataset(std::move(spec)),
      mean_(mean),
      stddev_(stddev),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)) {}

absl::StatusOr<std::shared_ptr<const ImageDataset>> ImageDataset::Create(
    const Shape& image, int64_t classes, double mean, double stddev, std::vector<uint8_t> pixels,
    std::vector<int32_t> labels) {
  RETURN_IF_ERROR(CheckShape(image.elements(), classes, pixels.size(), labels));
  ASSIGN_OR_RETURN(SampleSpec spec, ImageSpec(image, classes, mean, stddev));
  return std::shared_ptr<const ImageDataset>(
      new ImageDataset(std::move(spec), mean, stddev, std::move(pixels), std::move(labels)));
}

void ImageDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  std::memcpy(out, pixels_.data() + row * features(), static_cast<size_t>(features()));
}

void ImageDataset::ReadTarget(int64_t row, std::byte* out) const { CopyLabel(labels_, row, out); }

absl::StatusOr<std::shared_ptr<const Dataset>> LabeledByNumbers(
    std::shared_ptr<const Dataset> samples, std::vector<float> numbers, int64_t labels) {
  STAGECOACH_CHECK(samples->spec().target.kind == TargetSpec::Kind::kNone,
                   Describe(samples->spec().target));
  const int64_t expected = samples->rows() * labels;
  if (labels < 1 || std::ssize(numbers) != expected) {
    return base::DataError(absl::StrFormat("%d labels, expected %d", numbers.size(), expected));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) continue;
    return base::DataError(absl::StrFormat("label of row %d is %g, expected a finite number",
                                           i / static_cast<size_t>(labels), numbers[i]));
  }
  return std::make_shared<const Labeled>(std::move(samples), std::move(numbers), labels);
}

absl::StatusOr<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                                      int64_t rows) {
  RETURN_IF_ERROR(CheckHas(*dataset, rows));
  return std::make_shared<const SomeRows>(std::move(dataset), rows, SomeRows::Which::kFirst);
}

absl::StatusOr<std::shared_ptr<const Dataset>> SpreadSubset(std::shared_ptr<const Dataset> dataset,
                                                            int64_t rows) {
  RETURN_IF_ERROR(CheckHas(*dataset, rows));
  if (rows > std::numeric_limits<int32_t>::max()) {
    return base::DataError(absl::StrCat("asked for ", rows, " rows, expected at most ",
                                        std::numeric_limits<int32_t>::max(), " or all"));
  }
  return std::make_shared<const SomeRows>(std::move(dataset), rows, SomeRows::Which::kSpread);
}

}  // namespace stagecoach::engine
