#include "engine/data/feed.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/runtime/device/device_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;

// A data set of one number per row, and targets of any kind.
class Targets final : public Dataset {
 public:
  Targets(const TargetSpec& target, std::vector<int32_t> elements)
      : Dataset({.inputs = {{.name = "features", .shape = Shape{1}}}, .target = target}),
        elements_(std::move(elements)) {}

  int64_t rows() const override {
    return static_cast<int64_t>(elements_.size()) / spec().target.shape.elements();
  }

 private:
  void ReadInput(int /*i*/, int64_t /*row*/, std::byte* out) const override {
    std::memset(out, 0, sizeof(float));
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    std::memcpy(out, elements_.data() + row * spec().target.shape.elements(),
                static_cast<size_t>(spec().target.bytes()));
  }

  const std::vector<int32_t> elements_;
};

// Returns the targets of all rows as a loss that takes `target` receives them.
absl::StatusOr<std::vector<int32_t>> GivenTo(const TargetSpec& target, const Dataset& data) {
  const auto device = MakeDevice({}, 0).value();
  Feed feed =
      Feed::Create(*device, {.micro_batch_rows = data.rows(), .feeds_loss = true, .target = target})
          .value();
  const kernels::Buffer place = device->Allocate(BytesOfTargets(target, data.rows())).value();
  feed.PlaceTargets(place.data());
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < data.rows(); ++row) rows.push_back(row);
  const absl::Status status = feed.Loss({.data = &data, .rows = rows}, 0);
  if (!status.ok()) return status;
  EXPECT_EQ(feed.TermsOf(0)->valid_samples, data.rows());
  const Tensor given = feed.TargetsOf(0);
  return std::vector<int32_t>(given.i32(), given.i32() + given.elements());
}

TEST(Feed, TakesEveryLabelThatIsAClass) {
  const TargetSpec target = TargetSpec::ClassLabel(3);
  const std::vector<int32_t> labels = {0, 2, 1};
  EXPECT_EQ(GivenTo(target, Targets(target, labels)).value(), labels);
}

TEST(Feed, RefusesALabelThatIsNoClassOfTheLoss) {
  // What the data themselves declare does not count.
  const TargetSpec of_data = TargetSpec::ClassLabel(1000);
  for (const int32_t label :
       {-1, 3, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    EXPECT_THAT(GivenTo(TargetSpec::ClassLabel(3), Targets(of_data, {0, 2, label, 1})),
                IsRefused(absl::StrCat("label of row 2 is ", label,
                                       ", expected 0 to 2: the loss is of 3 classes")));
  }
}

TEST(Feed, SaysAtWhichPositionALabelIsNoClass) {
  TargetSpec target = TargetSpec::ClassLabel(5);
  target.shape = Shape{3};
  EXPECT_THAT(
      GivenTo(target, Targets(target, {0, 1, 2, 4, 4, 5})),
      StatusIs(absl::StatusCode::kInvalidArgument,
               ::testing::Eq("label of row 1, position 2, is 5, expected 0 to 4: the loss is of 5 "
                             "classes")));
}

// Rows of three labels, some of which are missing.
class SomeLabels final : public Dataset {
 public:
  SomeLabels(const TargetSpec& target, std::vector<int32_t> labels, int64_t answers)
      : Dataset({.inputs = {{.name = "features", .shape = Shape{1}}}, .target = target}),
        labels_(std::move(labels)),
        answers_(answers) {}
  int64_t rows() const override { return static_cast<int64_t>(labels_.size()) / 3; }
  int64_t AnswersOf(int64_t row) const override { return row == 0 ? 3 : answers_; }

 private:
  void ReadInput(int /*i*/, int64_t /*row*/, std::byte* out) const override {
    std::memset(out, 0, sizeof(float));
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    std::memcpy(out, labels_.data() + row * 3, 3 * sizeof(int32_t));
  }

  const std::vector<int32_t> labels_;
  const int64_t answers_;
};

TEST(Feed, TakesMissingLabelsOfDataThatSaysSo) {
  const TargetSpec target = {.kind = TargetSpec::Kind::kClasses, .shape = Shape{3}, .classes = 5};
  const std::vector<int32_t> labels = {0, 1, 2, kernels::kNoLabel, 4, kernels::kNoLabel};
  EXPECT_EQ(GivenTo(target, SomeLabels(target, labels, 1)).value(), labels);
  for (const int64_t answers : {0, 2, 3}) {
    EXPECT_THAT(GivenTo(target, SomeLabels(target, labels, answers)),
                IsRefused("label of row 1, position 0, is -1, expected 0 to 4"));
  }
  const SomeLabels data(target, labels, 1);
  EXPECT_EQ(CountAnswers(data, {0, 1, 1}), 5);
  const auto half = Subset(std::make_shared<SomeLabels>(target, labels, 2), 2).value();
  EXPECT_EQ(half->AnswersOf(1), 2);
  // Four of six answers: the batch weighs as much as 4/3 rows, whichever of them a micro-batch has.
  const std::vector<int64_t> rows = {0, 1};
  const Batch batch = {.data = &data, .rows = rows, .answers = 4};
  EXPECT_DOUBLE_EQ(batch.weight(), 4.0 / 3.0);
  EXPECT_EQ(batch.TermsOf(1, 1), (kernels::LossTerms{1, 0.75F}));
}

// The batch has two whole micro-batches and one of a single row; the next one has the same first
// rows.
TEST(Feed, TellsALossWhichSamplesAreValidAndTheScaleOfTheBatch) {
  const std::vector<int64_t> rows = {0, 1, 2, 3, 4};
  const Batch batch = {.rows = rows};
  std::vector<kernels::LossTerms> terms;
  for (int i = 0; i < 4; ++i) terms.push_back(batch.TermsOf(i, /*micro_batch_rows=*/2));
  EXPECT_THAT(terms,
              ::testing::ElementsAre(kernels::LossTerms{2, 0.2F}, kernels::LossTerms{2, 0.2F},
                                     kernels::LossTerms{1, 0.2F}, kernels::LossTerms{0, 0.2F}));
  EXPECT_EQ((Batch{.rows = {0, 1}}.TermsOf(0, 2)), (kernels::LossTerms{2, 0.5F}));
  EXPECT_EQ((Batch{.rows = {0, 1}, .wants_loss = false}.TermsOf(0, 2)),
            (kernels::LossTerms{0, 0.5F}));
  EXPECT_EQ(Batch().TermsOf(0, 2), (kernels::LossTerms{0, 1.0F}));
}

// Numbers have the bits of labels that would be refused.
TEST(Feed, TakesAnyNumberAsATarget) {
  const TargetSpec target = {.kind = TargetSpec::Kind::kValues};
  const std::vector<int32_t> numbers = {-1, std::numeric_limits<int32_t>::min(), 1 << 30};
  EXPECT_EQ(GivenTo(target, Targets(target, numbers)).value(), numbers);
}

// A data set with rows of three ids, and no targets.
class RowsOfIds final : public Dataset {
 public:
  explicit RowsOfIds(std::vector<int32_t> ids)
      : Dataset({.inputs = {{.name = "ids", .type = DType::kInt32, .shape = Shape{3}}}}),
        ids_(std::move(ids)) {}

  int64_t rows() const override { return std::ssize(ids_) / 3; }

 private:
  void ReadInput(int /*i*/, int64_t row, std::byte* out) const override {
    std::memcpy(out, ids_.data() + 3 * row, 3 * sizeof(int32_t));
  }
  void ReadTarget(int64_t /*row*/, std::byte* /*out*/) const override {}

  const std::vector<int32_t> ids_;
};

// Returns what a model with a vocabulary of 5 is fed: the last row, and then a row of padding.
absl::StatusOr<std::vector<int32_t>> FedOf(const RowsOfIds& data) {
  const auto device = MakeDevice({}, 0).value();
  Feed feed =
      Feed::Create(*device, {.micro_batch_rows = 2, .features = 3, .vocabulary = 5}).value();
  std::vector<int32_t> given(6, -1);
  const std::vector<int64_t> rows = {data.rows() - 1};
  RETURN_IF_ERROR(feed.Features(
      {.data = &data, .rows = rows}, 0,
      Tensor{reinterpret_cast<std::byte*>(given.data()), DType::kInt32, Shape{2, 3}}));
  return given;
}

// An operation on a device would find no such row in its table.
TEST(Feed, RefusesAnIdOutsideTheVocabulary) {
  EXPECT_EQ(FedOf(RowsOfIds({0, 4, 2})).value(), (std::vector<int32_t>{0, 4, 2, 0, 0, 0}));
  for (const int32_t id : {-1, 5, std::numeric_limits<int32_t>::max()}) {
    EXPECT_THAT(FedOf(RowsOfIds({0, 0, 0, 1, 4, id})),
                IsRefused(absl::StrCat("id of row 1, position 2, is ", id,
                                       ", expected 0 to 4: the vocabulary has 5 ids")));
  }
}

// Rows of three positions, with the first positions of their documents.
class RowsOfDocuments final : public Dataset {
 public:
  explicit RowsOfDocuments(std::vector<int32_t> first_positions)
      : Dataset({.inputs = {{.name = "ids", .type = DType::kInt32, .shape = Shape{3}}},
                 .has_documents = true}),
        first_positions_(std::move(first_positions)) {}

  int64_t rows() const override { return std::ssize(first_positions_) / 3; }

 private:
  void ReadInput(int /*i*/, int64_t /*row*/, std::byte* /*out*/) const override {}
  void ReadTarget(int64_t /*row*/, std::byte* /*out*/) const override {}
  void ReadDocuments(int64_t row, absl::Span<int32_t> out) const override {
    std::copy_n(first_positions_.begin() + 3 * row, 3, out.begin());
  }

  const std::vector<int32_t> first_positions_;
};

// Returns what the layers of two micro-batches of two rows are told, of a batch of all rows.
absl::StatusOr<std::vector<int32_t>> DocumentsFedOf(const Dataset& data) {
  const auto device = MakeDevice({}, 0).value();
  Feed feed =
      Feed::Create(*device, {.micro_batch_rows = 2, .micro_batches = 2, .document_positions = 3})
          .value();
  const kernels::Buffer place = device->Allocate(2 * BytesOfDocuments(3, 2)).value();
  feed.PlaceDocuments(place.data());
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < data.rows(); ++row) rows.push_back(row);
  std::vector<int32_t> given;
  for (int i = 0; i < 2; ++i) {
    const Tensor documents = feed.DocumentsOf(i);
    std::fill_n(documents.i32(), documents.elements(), -1);
    RETURN_IF_ERROR(feed.Documents({.data = &data, .rows = rows}, i));
    given.insert(given.end(), documents.i32(), documents.i32() + documents.elements());
  }
  return given;
}

TEST(Feed, TellsTheDocumentsOfARow) {
  EXPECT_EQ(DocumentsFedOf(RowsOfDocuments({0, 0, 2, 0, 1, 1, 0, 1, 2})).value(),
            (std::vector<int32_t>{0, 0, 2, 0, 1, 1, 0, 1, 2, 0, 0, 0}));
  // Rows without documents are one each.
  EXPECT_EQ(DocumentsFedOf(RowsOfIds({1, 2, 3})).value(), std::vector<int32_t>(12, 0));
  const auto device = MakeDevice({}, 0).value();
  Feed none = Feed::Create(*device, {.micro_batch_rows = 2, .micro_batches = 2}).value();
  EXPECT_TRUE(none.DocumentsOf(1).empty());
  EXPECT_OK(none.Documents({}, 1));
}

TEST(Feed, RefusesDocumentsThatAreNone) {
  EXPECT_THAT(DocumentsFedOf(RowsOfDocuments({0, 0, 2, 1, 1, 1})),
              IsRefused("document of row 1, position 0, begins at 1, expected 0 to 0"));
  EXPECT_THAT(DocumentsFedOf(RowsOfDocuments({0, -1, 2})),
              IsRefused("row 0, position 1, begins at -1, expected 0 to 1"));
  EXPECT_THAT(DocumentsFedOf(RowsOfDocuments({0, 1, 0})),
              IsRefused("row 0, position 2, begins at 0, expected 1 to 2"));
  EXPECT_THAT(DocumentsFedOf(RowsOfDocuments({0, 1, 3})),
              IsRefused("row 0, position 2, begins at 3, expected 1 to 2"));
}

// Returns what a bfloat16 device is fed for one row.
std::vector<uint16_t> Rounded(const Dataset& data, int64_t row) {
  const auto device = MakeDevice({.precision = Precision::kBfloat16}, 0).value();
  Feed feed = Feed::Create(*device, {.features = data.features()}).value();
  std::vector<uint16_t> given(static_cast<size_t>(data.features()));
  const std::vector<int64_t> rows = {row};
  EXPECT_OK(feed.Features({.data = &data, .rows = rows}, 0,
                          Tensor{reinterpret_cast<std::byte*>(given.data()), DType::kBfloat16,
                                 Shape{1, data.features()}}));
  return given;
}

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (const float value : values) rounded.push_back(kernels::ToBfloat16(value));
  return rounded;
}

TEST(Feed, RoundsEveryPixelAsItsNumber) {
  const absl::Status has = kernels::CheckBfloat16OnCpu();
  if (!has.ok()) GTEST_SKIP() << has.message();
  std::vector<uint8_t> pixels;
  for (int row = 0; row < 2; ++row) {
    for (int i = 0; i < 256; ++i) pixels.push_back(static_cast<uint8_t>(row == 0 ? i : 255 - i));
  }
  const auto data = ImageDataset::Create({16, 16}, 2, 0.3, 0.17, pixels, {0, 1}).value();
  for (const int64_t row : {0, 1}) {
    std::vector<float> numbers(256);
    data->CopyNumbers(0, row, absl::MakeSpan(numbers));
    EXPECT_EQ(Rounded(*data, row), Rounded(numbers)) << row;
  }
}

TEST(Feed, RoundsNumbersToTheNearest) {
  const absl::Status has = kernels::CheckBfloat16OnCpu();
  if (!has.ok()) GTEST_SKIP() << has.message();
  const std::vector<float> values = {0.0F,         -0.0F,       1.0F,      1.00390625F,
                                     1.01171875F,  1.00390637F, 3.4e38F,   -1e-40F,
                                     -1.00390625F, 0.1F,        -65536.5F, 1e-30F};
  const auto data = TableDataset::Create({12}, 0, values, {}).value();
  const std::vector<uint16_t> rounded = Rounded(*data, 0);
  EXPECT_EQ(rounded, Rounded(values));
  EXPECT_EQ(rounded[3], 0x3F80) << "a tie goes to the even one";
  EXPECT_EQ(rounded[4], 0x3F82) << "a tie goes to the even one";
}

}  // namespace
}  // namespace stagecoach::engine
