#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/stagecoach/predict/confusion_table.h"

namespace stagecoach::tools {
namespace {

using ::testing::HasSubstr;

TEST(ClassOf, IsTheFirstOfTheLargest) {
  EXPECT_EQ(engine::ClassOf(std::vector<float>{-1.0F, 3.0F, 3.0F}), 1);
  EXPECT_EQ(engine::ClassOf(std::vector<float>{-1.0F}), 0);
}

engine::Confusion OfThree() {
  engine::Confusion confusion(4);
  for (int i = 0; i < 1500; ++i) confusion.Add(0, 0);
  for (int i = 0; i < 500; ++i) confusion.Add(0, 2);
  for (int i = 0; i < 3; ++i) confusion.Add(2, 0);
  confusion.Add(2, 2);
  return confusion;
}

TEST(Confusion, CountsByClass) {
  const engine::Confusion confusion = OfThree();
  EXPECT_EQ(confusion.of_class()[0].rows, 2000);
  EXPECT_EQ(confusion.of_class()[0].correct, 1500);
  EXPECT_EQ(confusion.of_class()[0].predicted, 1503);
  EXPECT_EQ(confusion.of_class()[2].predicted, 501);
  EXPECT_EQ(confusion.counts().at({0, 2}), 500);
  EXPECT_EQ(confusion.counts().size(), 4U);
}

// Classes that do not occur are omitted.
TEST(ConfusionTable, HasAColumnForEachClassWhereThatFits) {
  EXPECT_EQ(ConfusionTable(OfThree(), {}, 80),
            "class   rows  accuracy   as 0  as 2\n"
            "-----  -----  --------  -----  ----\n"
            "0      2,000    75.0 %  1,500   500\n"
            "2          4    25.0 %      3     1\n");
  EXPECT_EQ(ConfusionTable(OfThree(), {}, 35).substr(0, 35), "class   rows  accuracy   as 0  as 2");
}

TEST(ConfusionTable, ElseNamesTheCommonestMistake) {
  const engine::DataEncoding names = {.class_names = {"a", "b", "c", "d"}};
  EXPECT_EQ(ConfusionTable(OfThree(), names, 34),
            "class   rows  accuracy  most often mistaken for\n"
            "-----  -----  --------  -----------------------\n"
            "a      2,000    75.0 %  c (500)\n"
            "c          4    25.0 %  a (3)\n");
}

TEST(ConfusionTable, NamesTheFirstOfTheCommonestMistakes) {
  engine::Confusion confusion(3);
  confusion.Add(0, 1);
  confusion.Add(0, 2);
  EXPECT_THAT(ConfusionTable(confusion, {}, 10), HasSubstr("0.0 %  1 (1)\n"));
  // A class without a name is shown by its number.
  EXPECT_THAT(ConfusionTable(confusion, {.class_names = {"a"}}, 10),
              HasSubstr("\na         2     0.0 %  1 (1)\n"));
}

TEST(ConfusionTable, ShowsAClassThatIsOnlyPredicted) {
  engine::Confusion confusion(3);
  confusion.Add(1, 2);
  EXPECT_EQ(ConfusionTable(confusion, {}, 80),
            "class  rows  accuracy  as 1  as 2\n"
            "-----  ----  --------  ----  ----\n"
            "1         1     0.0 %     .     1\n"
            "2         0               .     .\n");
}

}  // namespace
}  // namespace stagecoach::tools
