#include "engine/data/sample_spec.h"

#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;

constexpr auto kNone = TargetSpec::Kind::kNone;
constexpr auto kClasses = TargetSpec::Kind::kClasses;
constexpr auto kValues = TargetSpec::Kind::kValues;

SampleSpec Labeled(DType type) {
  return {.inputs = {{.name = "things", .type = type, .shape = Shape{6}}},
          .target = TargetSpec::ClassLabel(3)};
}

TEST(CheckFits, TakesNumbersAndAtMostAsManyClassesAsOutputs) {
  EXPECT_OK(CheckFits(Labeled(DType::kFloat32), Shape{2, 3}, TargetSpec::ClassLabel(3)));
  EXPECT_OK(CheckFits(Labeled(DType::kUint8), Shape{6}, TargetSpec::ClassLabel(4)));
}

TEST(CheckFits, TakesImagesOfTheShapeOfTheModelsOrAsFeatures) {
  SampleSpec data = Labeled(DType::kUint8);
  data.inputs.front().shape = Shape{1, 2, 3};
  const TargetSpec target = TargetSpec::ClassLabel(3);
  EXPECT_OK(CheckFits(data, Shape{1, 2, 3}, target));
  EXPECT_OK(CheckFits(data, Shape{2, 3}, target));
  EXPECT_OK(CheckFits(data, Shape{6}, target));
  EXPECT_THAT(CheckFits(data, Shape{1, 3, 2}, target),
              IsRefused("has images of shape [1, 2, 3]; the model takes [1, 3, 2]"));
}

SampleSpec Ids(int64_t context, int64_t vocabulary) {
  return {.inputs = {{.name = "words",
                      .type = DType::kInt32,
                      .shape = Shape{context},
                      .vocabulary = vocabulary}},
          .target = {.kind = kClasses, .shape = Shape{context}, .classes = vocabulary}};
}

TEST(CheckFits, TakesIdsOfTheModelsVocabularyOrLess) {
  const TargetSpec target = {.kind = kClasses, .shape = Shape{6}, .classes = 9};
  EXPECT_OK(CheckFits(Ids(6, 9), Shape{6}, target, /*vocabulary=*/9));
  EXPECT_OK(CheckFits(Ids(6, 5), Shape{6}, target, /*vocabulary=*/9));
  SampleSpec packed = Ids(6, 9);
  packed.has_documents = true;
  EXPECT_OK(CheckFits(packed, Shape{6}, target, /*vocabulary=*/9, /*takes_documents=*/true));
  EXPECT_OK(CheckFits(Ids(6, 9), Shape{6}, target, /*vocabulary=*/9, /*takes_documents=*/true));
  EXPECT_THAT(CheckFits(packed, Shape{6}, target, /*vocabulary=*/9),
              IsRefused("consist of several documents; the model takes them as one"));
  EXPECT_THAT(CheckFits(Ids(6, 9), Shape{6}, target, /*vocabulary=*/8),
              IsRefused("ids of a vocabulary of 9; the model takes ids of 8"));
}

TEST(TargetSpec, AnswersAreItsLabels) {
  EXPECT_EQ(TargetSpec::ClassLabel(3).answers(), 1);
  EXPECT_EQ((TargetSpec{.kind = kClasses, .shape = Shape{5}, .classes = 3}).answers(), 5);
  EXPECT_EQ((TargetSpec{.kind = kValues, .shape = Shape{5}}).answers(), 1);
  EXPECT_EQ(TargetSpec().answers(), 1);
}

TEST(CheckFits, RefusesOtherInputsAndTargets) {
  SampleSpec two_inputs = Labeled(DType::kFloat32);
  two_inputs.inputs.push_back({.name = "others", .shape = Shape{6}});
  const auto fits_with_target = [](const TargetSpec& target) {
    SampleSpec data = Labeled(DType::kFloat32);
    data.target = target;
    return CheckFits(data, Shape{6}, TargetSpec::ClassLabel(3));
  };
  ExpectRefusals({
      {CheckFits(Labeled(DType::kFloat32), Shape{6}, TargetSpec::ClassLabel(2)),
       "has 6 features and 3 classes; the model takes 6 features and gives 2 outputs"},
      {CheckFits(Labeled(DType::kInt32), Shape{6}, TargetSpec::ClassLabel(3)),
       "input \"things\" is of ids; the model takes numbers"},
      {CheckFits(Labeled(DType::kFloat32), Shape{6}, TargetSpec::ClassLabel(3), /*vocabulary=*/9),
       "input \"things\" is of numbers; the model takes ids"},
      {CheckFits(Ids(6, 9), Shape{2, 3}, {.kind = kNone}, /*vocabulary=*/9),
       "ids of shape [6]; the model takes [2, 3]"},
      {CheckFits(two_inputs, Shape{6}, TargetSpec::ClassLabel(3)), "has 2 inputs (things, others)"},
      {fits_with_target({.kind = kValues, .shape = Shape{3}}),
       "the loss takes one label of 3 classes; the data has float targets of shape [3]"},
      {fits_with_target({.kind = kClasses, .shape = Shape{5}, .classes = 3}),
       "has labels of 3 classes, of shape [5]"},
      {fits_with_target({}), "the data has no targets"},
  });
}

TEST(CheckFits, ALossWithoutTargetsRunsOnAnyData) {
  SampleSpec data = Labeled(DType::kFloat32);
  EXPECT_OK(CheckFits(data, Shape{6}, {.kind = kNone}));
  data.target = {};
  EXPECT_OK(CheckFits(data, Shape{6}, {.kind = kNone}));
}

}  // namespace
}  // namespace stagecoach::engine
