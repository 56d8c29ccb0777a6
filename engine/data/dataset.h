#ifndef STAGECOACH_ENGINE_DATA_DATASET_H_
#define STAGECOACH_ENGINE_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/encoding.h"
#include "engine/data/sample_spec.h"

namespace stagecoach::engine {

// An indexed set of samples in host memory. Immutable after construction, so all stages may read it
// concurrently. Rows count from 0. A row outside [0, rows()), a span of the wrong length or a call
// that does not suit spec() is a programmer's error and aborts.
class Dataset {
 public:
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset();

  virtual int64_t rows() const = 0;  // >= 1
  // True if rows are made on demand and never end: rows() is then kEndlessRows, and they are
  // trained on in their order (engine/data/stream_dataset.h).
  virtual bool is_endless() const { return false; }
  const SampleSpec& spec() const { return spec_; }
  // Returns how many of TargetSpec::answers() a row has: not all of them if some of its labels are
  // kernels::kNoLabel, but at least one.
  virtual int64_t AnswersOf(int64_t /*row*/) const { return spec_.target.answers(); }

  // Returns the set as an epoch (>= 0) of training sees it, which depends on the arguments alone:
  // as many rows, of the same spec. Null: unchanged, in every epoch.
  virtual std::shared_ptr<const Dataset> ForEpoch(uint64_t /*seed*/, int64_t /*epoch*/) const {
    return nullptr;
  }

  // Returns what a row is called where it is predicted, such as its file; "": it has no name.
  virtual std::string NameOf(int64_t /*row*/) const { return {}; }

  // Announces rows that will be read soon, in that order: sets whose rows take long to read begin
  // with them. What is read does not depend on it.
  virtual void WillRead(absl::Span<const int64_t> /*rows*/) const {}
  // Returns the first error of reading a row, such as of a file that has been removed since: the
  // row was read as 0.
  virtual absl::Status ReadStatus() const { return absl::OkStatus(); }

  // Write a row's input `i` of spec(), or its target, to `out` unchanged.
  void CopyInput(int i, int64_t row, absl::Span<std::byte> out) const;
  void CopyTarget(int64_t row, absl::Span<std::byte> out) const;
  // Writes the first position of the document that each position of a row is in: 0 everywhere
  // unless spec().has_documents. `out`: as many as the positions of input 0, which has ids.
  void CopyDocuments(int64_t row, absl::Span<int32_t> out) const;
  // Writes a row's input `i`, which has numbers, as a stage is fed it.
  void CopyNumbers(int i, int64_t row, absl::Span<float> out) const;

  // For data with one input, as is all that is loaded. An image counts as that many features,
  // row-major; a sequence of tokens as that many. `label`: for data with one label per sample,
  // which is a class; `number`: a number.
  int64_t features() const { return input(0).shape.elements(); }  // >= 1
  int64_t classes() const { return spec_.target.classes; }        // >= 2; 0 for other targets
  int32_t label(int64_t row) const;
  float number(int64_t row) const;

 protected:
  explicit Dataset(SampleSpec spec) : spec_(std::move(spec)) {}

 private:
  const TensorSpec& input(int i) const { return spec_.inputs[static_cast<size_t>(i)]; }
  void CheckRow(int64_t row) const;
  // Read an existing row; `out` has room for what spec() says.
  virtual void ReadInput(int i, int64_t row, std::byte* out) const = 0;
  virtual void ReadTarget(int64_t row, std::byte* out) const = 0;
  virtual void ReadDocuments(int64_t row, absl::Span<int32_t> out) const;  // with has_documents

  const SampleSpec spec_;
};

inline constexpr int64_t kEndlessRows = int64_t{1} << 53;

// Returns the number of answers that rows have in all.
int64_t CountAnswers(const Dataset& data, absl::Span<const int64_t> rows);
// Returns the sum of the weights of the classes that are their labels, in order; 0 if there are no
// weights. Labels that are no class count nothing.
double WeighAnswers(const Dataset& data, absl::Span<const int64_t> rows,
                    absl::Span<const float> class_weights);

// Kind of the labels of a file: classes to tell apart, or numbers to predict.
enum class LabelKind : uint8_t { kClasses, kNumbers };

// Place of the channels in a file of images: before or after height and width.
enum class ChannelOrder : uint8_t { kFirst, kLast };

// Two sets of equal features() and classes(), standardized by the statistics of `train` alone.
struct TrainTest {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;  // null with Sets::kTraining
  DataEncoding encoding = {};           // that of both
  DataFingerprint fingerprint = {};     // that of both, for checkpoints; empty: not computed
};

// The parts of data that are loaded. kTraining: for a test set from elsewhere. All of a file that
// would be divided is then used for training, and files of a test set may be missing.
enum class Sets : uint8_t { kBoth, kTraining };

// Samples of any origin, 4 bytes per feature. The input is called "features", here and below.
class TableDataset final : public Dataset {
 public:
  // `sample` is [features], or the shape of an image. `values` is (rows, features) row-major,
  // finite and already standardized; `labels` is (rows), or empty with 0 classes: there are no
  // targets. InvalidArgument if the sizes disagree, there is no row or no feature, there are fewer
  // than two classes, a label is outside [0, classes) or a value is not finite.
  static absl::StatusOr<std::shared_ptr<const TableDataset>> Create(const kernels::Shape& sample,
                                                                    int64_t classes,
                                                                    std::vector<float> values,
                                                                    std::vector<int32_t> labels);

  int64_t rows() const override { return static_cast<int64_t>(values_.size()) / features(); }

 private:
  TableDataset(SampleSpec spec, std::vector<float> values, std::vector<int32_t> labels);
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const std::vector<float> values_;  // (rows, features)
  const std::vector<int32_t> labels_;
};

// Images, 1 byte per feature. A pixel v stands for (v / 255 - mean) / stddev.
class ImageDataset final : public Dataset {
 public:
  // `pixels` is (rows, features) row-major, `labels` is (rows); `mean` and `stddev` are on the
  // scale where white is 1. InvalidArgument as for TableDataset, or if `mean` is not finite or
  // `stddev` is not finite and positive.
  static absl::StatusOr<std::shared_ptr<const ImageDataset>> Create(const kernels::Shape& image,
                                                                    int64_t classes, double mean,
                                                                    double stddev,
                                                                    std::vector<uint8_t> pixels,
                                                                    std::vector<int32_t> labels);

  int64_t rows() const override { return static_cast<int64_t>(pixels_.size()) / features(); }

  double mean() const { return mean_; }
  double stddev() const { return stddev_; }

 private:
  ImageDataset(SampleSpec spec, double mean, double stddev, std::vector<uint8_t> pixels,
               std::vector<int32_t> labels);
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const double mean_;
  const double stddev_;
  const std::vector<uint8_t> pixels_;  // (rows, features)
  const std::vector<int32_t> labels_;
};

// Returns a view of `samples`, which have no targets, with a number as the target of each, or
// `labels` of them: (rows, labels). InvalidArgument: there are not as many numbers, or one is not
// finite.
absl::StatusOr<std::shared_ptr<const Dataset>> LabeledByNumbers(
    std::shared_ptr<const Dataset> samples, std::vector<float> numbers, int64_t labels = 1);

// Returns a view of the first `rows` rows of `dataset`, which it keeps alive. InvalidArgument
// unless `rows` is in [1, dataset->rows()].
absl::StatusOr<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                                      int64_t rows);

// Returns a view of `rows` rows of `dataset`, spread evenly over it and in its order: row i is its
// row floor(i * dataset->rows() / rows). InvalidArgument likewise, and above 2^31 - 1 rows.
absl::StatusOr<std::shared_ptr<const Dataset>> SpreadSubset(std::shared_ptr<const Dataset> dataset,
                                                            int64_t rows);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_DATASET_H_
