#include "engine/data/formats/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/data/formats/format.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kSynthetic = "synthetic:";
constexpr int64_t kHidden = 32;
constexpr int64_t kCalibrationRows = 1024;

int64_t TestRows(int64_t train_rows) { return std::max<int64_t>(1, train_rows / 5); }

absl::Status Validate(const SyntheticSpec& spec) {
  if (spec.rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("synthetic set of %d rows, expected at least one", spec.rows));
  }
  if (spec.features < 1 || spec.features > kMaxSyntheticFeatures) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "synthetic set of %d features, expected 1 to %d", spec.features, kMaxSyntheticFeatures));
  }
  if (spec.classes < 2 || spec.classes > kMaxSyntheticClasses) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "synthetic set of %d classes, expected 2 to %d", spec.classes, kMaxSyntheticClasses));
  }
  // The first comparison keeps the product in the second from overflowing.
  if (spec.rows > kMaxSyntheticValues / spec.features ||
      (spec.rows + TestRows(spec.rows)) * spec.features > kMaxSyntheticValues) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "synthetic set of %d rows x %d features exceeds, with its test rows, the limit of %d "
        "values",
        spec.rows, spec.features, kMaxSyntheticValues));
  }
  return absl::OkStatus();
}

// Returns the standard normal values number `first` to `first + count - 1` of one use.
std::vector<float> Normals(uint64_t seed, DataStream use, int64_t count, int64_t first = 0) {
  std::vector<float> values(count);
  base::RandomStream(seed, StreamId(use)).FillNormal(0, 1, absl::MakeSpan(values), first);
  return values;
}

class Teacher {
 public:
  Teacher(const SyntheticSpec& spec, uint64_t seed);

  int32_t Label(absl::Span<const float> x) const;

 private:
  // Returns the raw logits (classes) of the input `x` (features).
  std::vector<float> Logits(absl::Span<const float> x) const;

  int64_t features_;
  int64_t classes_;
  std::vector<float> hidden_weights_;  // (features, kHidden)
  std::vector<float> output_weights_;  // (classes, kHidden)
  std::vector<double> mean_;           // (classes), of the raw logits
  std::vector<double> stddev_;         // (classes)
};

Teacher::Teacher(const SyntheticSpec& spec, uint64_t seed)
    : features_(spec.features),
      classes_(spec.classes),
      hidden_weights_(Normals(seed, DataStream::kTeacherHidden, features_ * kHidden)),
      output_weights_(Normals(seed, DataStream::kTeacherOutput, classes_ * kHidden)),
      mean_(classes_, 0.0),
      stddev_(classes_, 0.0) {
  std::vector<double> square(classes_, 0.0);
  for (int64_t row = 0; row < kCalibrationRows; ++row) {
    const std::vector<float> logits =
        Logits(Normals(seed, DataStream::kSyntheticCalibration, features_, row * features_));
    for (int64_t c = 0; c < classes_; ++c) {
      mean_[c] += logits[c] / double{kCalibrationRows};
      square[c] += double{logits[c]} * logits[c] / double{kCalibrationRows};
    }
  }
  for (int64_t c = 0; c < classes_; ++c) stddev_[c] = std::sqrt(square[c] - mean_[c] * mean_[c]);
}

std::vector<float> Teacher::Logits(absl::Span<const float> x) const {
  std::array<float, kHidden> hidden = {};
  for (int64_t f = 0; f < features_; ++f) {
    for (int64_t h = 0; h < kHidden; ++h) hidden[h] += x[f] * hidden_weights_[f * kHidden + h];
  }
  std::vector<float> logits(classes_, 0.0f);
  for (int64_t c = 0; c < classes_; ++c) {
    for (int64_t h = 0; h < kHidden; ++h) {
      logits[c] += std::max(hidden[h], 0.0f) * output_weights_[c * kHidden + h];
    }
  }
  return logits;
}

int32_t Teacher::Label(absl::Span<const float> x) const {
  const std::vector<float> logits = Logits(x);
  std::vector<double> standardized(classes_);
  for (int64_t c = 0; c < classes_; ++c) standardized[c] = (logits[c] - mean_[c]) / stddev_[c];
  return static_cast<int32_t>(std::max_element(standardized.begin(), standardized.end()) -
                              standardized.begin());
}

absl::StatusOr<std::shared_ptr<const Dataset>> MakeSet(const SyntheticSpec& spec, uint64_t seed,
                                                       const Teacher& teacher, DataStream use,
                                                       int64_t rows) {
  std::vector<float> values = Normals(seed, use, rows * spec.features);
  std::vector<int32_t> labels(rows);
  for (int64_t row = 0; row < rows; ++row) {
    labels[row] =
        teacher.Label(absl::MakeConstSpan(values).subspan(row * spec.features, spec.features));
  }
  return TableDataset::Create({spec.features}, spec.classes, std::move(values), std::move(labels));
}

class Zeros final : public Dataset {
 public:
  Zeros(SampleSpec spec, int64_t rows) : Dataset(std::move(spec)), rows_(rows) {}
  int64_t rows() const override { return rows_; }

 private:
  void ReadInput(int /*i*/, int64_t /*row*/, std::byte* out) const override {
    std::memset(out, 0, static_cast<size_t>(features()) * sizeof(float));
  }
  void ReadTarget(int64_t /*row*/, std::byte* out) const override {
    std::memset(out, 0, sizeof(int32_t));
  }

  int64_t rows_;
};

}  // namespace

absl::StatusOr<SyntheticSpec> ParseSyntheticSpec(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  std::array<int64_t, 3> numbers = {};
  bool well_formed = parts.size() == numbers.size();
  for (size_t i = 0; well_formed && i < numbers.size(); ++i) {
    well_formed = absl::SimpleAtoi(parts[i], &numbers[i]);
  }
  if (!well_formed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "synthetic set \"%s\", expected ROWSxFEATURESxCLASSES such as 10000x100x10", text));
  }
  const SyntheticSpec spec = {numbers[0], numbers[1], numbers[2]};
  RETURN_IF_ERROR(Validate(spec));
  return spec;
}

absl::StatusOr<TrainTest> MakeSynthetic(const SyntheticSpec& spec, uint64_t seed) {
  RETURN_IF_ERROR(Validate(spec));
  const Teacher teacher(spec, seed);
  TrainTest data;
  ASSIGN_OR_RETURN(data.train,
                   MakeSet(spec, seed, teacher, DataStream::kSyntheticTrain, spec.rows));
  ASSIGN_OR_RETURN(data.test,
                   MakeSet(spec, seed, teacher, DataStream::kSyntheticTest, TestRows(spec.rows)));
  return data;
}

absl::StatusOr<TrainTest> MakeSyntheticShapes(const SyntheticSpec& spec) {
  RETURN_IF_ERROR(Validate(spec));
  ASSIGN_OR_RETURN(
      const auto row,
      TableDataset::Create({spec.features}, spec.classes,
                           std::vector<float>(static_cast<size_t>(spec.features)), {0}));
  return TrainTest{.train = std::make_shared<Zeros>(row->spec(), spec.rows),
                   .test = std::make_shared<Zeros>(row->spec(), TestRows(spec.rows))};
}

namespace {

absl::StatusOr<TrainTest> LoadSynthetic(const DataSource& source) {
  ASSIGN_OR_RETURN(const SyntheticSpec spec,
                   ParseSyntheticSpec(absl::StripPrefix(source.spec, kSynthetic)));
  return source.has_shapes_only ? MakeSyntheticShapes(spec) : MakeSynthetic(spec, source.seed);
}

}  // namespace

const DataFormat kSyntheticFormat = {
    .name = "synthetic:NxFxC",
    .form = "\"synthetic:ROWSxFEATURESxCLASSES\"",
    .matches = [](const DataSource& source) { return absl::StartsWith(source.spec, kSynthetic); },
    .load = [](const DataSource& source, Sets /*sets*/) { return LoadSynthetic(source); },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t /*classes*/) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(
          CheckEncodes(encoding.mean.empty(), "synthetic data", "its features were standardized"));
      RETURN_IF_ERROR(CheckEncodes(encoding.vocabulary == 0, "synthetic data",
                                   "it is fed with tokens, not with numbers"));
      ASSIGN_OR_RETURN(const TrainTest data, LoadSynthetic(source));
      return data.test;
    },
};

}  // namespace stagecoach::engine
