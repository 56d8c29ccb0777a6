#ifndef STAGECOACH_ENGINE_DATA_DATASET_H_
#define STAGECOACH_ENGINE_DATA_DATASET_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// An indexed set of labeled samples in host memory. Immutable after construction, so every stage
// may read it at once. Rows and labels count from 0. A row outside [0, rows()) or a span of the
// wrong length is a programmer's error and aborts.
class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset();

  virtual int64_t rows() const = 0;      // >= 1
  virtual int64_t features() const = 0;  // floats per sample, >= 1; an image is flattened row-major
  virtual int64_t classes() const = 0;   // >= 2; every label is in [0, classes())

  // Writes the standardized features of `row` to `out`, which holds features() floats.
  virtual void CopyFeatures(int64_t row, absl::Span<float> out) const = 0;
  virtual int32_t label(int64_t row) const = 0;
};

// Two sets with equal features() and classes(), standardized by the statistics of `train` alone.
struct TrainTest {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
};

// Samples of any origin, 4 bytes a feature.
class TableDataset final : public Dataset {
 public:
  // `values` is (rows, features) row-major, finite and already standardized; `labels` is (rows).
  // InvalidArgument if the sizes disagree, there is no row or no feature, there are fewer than two
  // classes, a label is outside [0, classes) or a value is not finite.
  static absl::StatusOr<std::shared_ptr<const TableDataset>> Create(int64_t features,
                                                                    int64_t classes,
                                                                    std::vector<float> values,
                                                                    std::vector<int32_t> labels);

  int64_t rows() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t features() const override { return features_; }
  int64_t classes() const override { return classes_; }
  void CopyFeatures(int64_t row, absl::Span<float> out) const override;
  int32_t label(int64_t row) const override;

 private:
  TableDataset(int64_t features, int64_t classes, std::vector<float> values,
               std::vector<int32_t> labels);

  const int64_t features_;
  const int64_t classes_;
  const std::vector<float> values_;  // (rows, features)
  const std::vector<int32_t> labels_;
};

// Gray images, 1 byte a feature. A pixel v reads as (v / 255 - mean) / stddev.
class ImageDataset final : public Dataset {
 public:
  // `pixels` is (rows, features) row-major, `labels` is (rows); `mean` and `stddev` are on the
  // scale where white is 1. InvalidArgument as for TableDataset, or if `mean` is not finite or
  // `stddev` is not a finite positive number.
  static absl::StatusOr<std::shared_ptr<const ImageDataset>> Create(int64_t features,
                                                                    int64_t classes, double mean,
                                                                    double stddev,
                                                                    std::vector<uint8_t> pixels,
                                                                    std::vector<int32_t> labels);

  int64_t rows() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t features() const override { return features_; }
  int64_t classes() const override { return classes_; }
  void CopyFeatures(int64_t row, absl::Span<float> out) const override;
  int32_t label(int64_t row) const override;

  double mean() const { return mean_; }
  double stddev() const { return stddev_; }

 private:
  ImageDataset(int64_t features, int64_t classes, double mean, double stddev,
               std::vector<uint8_t> pixels, std::vector<int32_t> labels);

  const int64_t features_;
  const int64_t classes_;
  const double mean_;
  const double stddev_;
  std::array<float, 256> value_of_pixel_;
  const std::vector<uint8_t> pixels_;  // (rows, features)
  const std::vector<int32_t> labels_;
};

// A view of the first `rows` rows of `dataset`, which it keeps alive. InvalidArgument unless `rows`
// is in [1, dataset->rows()].
absl::StatusOr<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                                      int64_t rows);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_DATASET_H_
