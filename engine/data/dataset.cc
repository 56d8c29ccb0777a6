#include "engine/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

absl::Status CheckShape(int64_t features, int64_t classes, size_t values,
                        const std::vector<int32_t>& labels) {
  if (labels.empty()) return absl::InvalidArgumentError("no rows, expected at least one");
  if (features < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(features, " features a row, expected at least one"));
  }
  if (classes < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("fewer than 2 classes (", classes, "): there is nothing to tell apart"));
  }
  // Divides instead of multiplying, which could overflow.
  const size_t width = static_cast<size_t>(features);
  if (values % width != 0 || values / width != labels.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("%d values, expected %d labels x %d features",
                                                      values, labels.size(), features));
  }
  for (size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0 || labels[row] >= classes) {
      return absl::InvalidArgumentError(absl::StrFormat("label of row %d is %d, expected 0 to %d",
                                                        row, labels[row], classes - 1));
    }
  }
  return absl::OkStatus();
}

void CheckRow(const Dataset& dataset, int64_t row) {
  STAGECOACH_CHECK(row >= 0 && row < dataset.rows(),
                   absl::StrCat("row ", row, " of a set of ", dataset.rows(), " rows"));
}

void CheckCopy(const Dataset& dataset, int64_t row, absl::Span<float> out) {
  CheckRow(dataset, row);
  STAGECOACH_CHECK(static_cast<int64_t>(out.size()) == dataset.features(),
                   absl::StrCat("room for ", out.size(), " floats, expected ", dataset.features()));
}

class FirstRows final : public Dataset {
 public:
  FirstRows(std::shared_ptr<const Dataset> whole, int64_t rows)
      : whole_(std::move(whole)), rows_(rows) {}

  int64_t rows() const override { return rows_; }
  int64_t features() const override { return whole_->features(); }
  int64_t classes() const override { return whole_->classes(); }
  void CopyFeatures(int64_t row, absl::Span<float> out) const override {
    CheckRow(*this, row);
    whole_->CopyFeatures(row, out);
  }
  int32_t label(int64_t row) const override {
    CheckRow(*this, row);
    return whole_->label(row);
  }

 private:
  const std::shared_ptr<const Dataset> whole_;
  const int64_t rows_;
};

}  // namespace

Dataset::~Dataset() = default;

TableDataset::TableDataset(int64_t features, int64_t classes, std::vector<float> values,
                           std::vector<int32_t> labels)
    : features_(features),
      classes_(classes),
      values_(std::move(values)),
      labels_(std::move(labels)) {}

absl::StatusOr<std::shared_ptr<const TableDataset>> TableDataset::Create(
    int64_t features, int64_t classes, std::vector<float> values, std::vector<int32_t> labels) {
  RETURN_IF_ERROR(CheckShape(features, classes, values.size(), labels));
  const auto is_finite = [](float value) { return std::isfinite(value); };
  const auto bad = std::find_if_not(values.begin(), values.end(), is_finite);
  if (bad != values.end()) {
    const int64_t index = bad - values.begin();
    return absl::InvalidArgumentError(
        absl::StrFormat("value of row %d, feature %d is %g, expected a finite number",
                        index / features, index % features, *bad));
  }
  return std::shared_ptr<const TableDataset>(
      new TableDataset(features, classes, std::move(values), std::move(labels)));
}

void TableDataset::CopyFeatures(int64_t row, absl::Span<float> out) const {
  CheckCopy(*this, row, out);
  std::copy_n(values_.begin() + row * features_, features_, out.begin());
}

int32_t TableDataset::label(int64_t row) const {
  CheckRow(*this, row);
  return labels_[row];
}

ImageDataset::ImageDataset(int64_t features, int64_t classes, double mean, double stddev,
                           std::vector<uint8_t> pixels, std::vector<int32_t> labels)
    : features_(features),
      classes_(classes),
      mean_(mean),
      stddev_(stddev),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)) {
  for (int pixel = 0; pixel < 256; ++pixel) {
    value_of_pixel_[pixel] = static_cast<float>((pixel / 255.0 - mean) / stddev);
  }
}

absl::StatusOr<std::shared_ptr<const ImageDataset>> ImageDataset::Create(
    int64_t features, int64_t classes, double mean, double stddev, std::vector<uint8_t> pixels,
    std::vector<int32_t> labels) {
  RETURN_IF_ERROR(CheckShape(features, classes, pixels.size(), labels));
  if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mean %g and standard deviation %g of the pixels, expected finite numbers, the second "
        "positive: images of a single shade cannot be standardized",
        mean, stddev));
  }
  return std::shared_ptr<const ImageDataset>(
      new ImageDataset(features, classes, mean, stddev, std::move(pixels), std::move(labels)));
}

void ImageDataset::CopyFeatures(int64_t row, absl::Span<float> out) const {
  CheckCopy(*this, row, out);
  std::transform(pixels_.begin() + row * features_, pixels_.begin() + (row + 1) * features_,
                 out.begin(), [this](uint8_t pixel) { return value_of_pixel_[pixel]; });
}

int32_t ImageDataset::label(int64_t row) const {
  CheckRow(*this, row);
  return labels_[row];
}

absl::StatusOr<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                                      int64_t rows) {
  if (rows < 1 || rows > dataset->rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("asked for ", rows, " rows of a set that has ", dataset->rows()));
  }
  return std::make_shared<const FirstRows>(std::move(dataset), rows);
}

}  // namespace stagecoach::engine
