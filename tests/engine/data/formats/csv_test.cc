#include "engine/data/formats/csv.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "engine/data/data_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kNotFound;
using absl::StatusCode::kResourceExhausted;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

absl::StatusOr<TrainTest> Load(const std::string& text, const CsvOptions& options = {}) {
  return LoadCsv(WriteTestFile(TestDirectory(), "a.csv", text), options);
}

// Returns a table of `rows` rows of a feature that counts rows, and the label, which alternates
// between 0 and 1.
std::string CountingTable(int64_t rows) {
  std::string text = "x,label\n";
  for (int64_t row = 0; row < rows; ++row) absl::StrAppend(&text, row, ",", row % 2, "\n");
  return text;
}

// Returns the labels of both sets together.
std::vector<int32_t> AllLabels(const TrainTest& data) {
  std::vector<int32_t> labels = LabelsOf(*data.train);
  for (const int32_t label : LabelsOf(*data.test)) labels.push_back(label);
  return labels;
}

std::vector<float> Column(const Dataset& dataset, int64_t feature) {
  std::vector<float> column;
  for (int64_t row = 0; row < dataset.rows(); ++row) {
    column.push_back(FeaturesOf(dataset, row)[feature]);
  }
  return column;
}

TEST(Csv, HoldsOutAFifthOfTheRows) {
  const auto data = Load(CountingTable(100));
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows(), 80);
  EXPECT_EQ(data->test->rows(), 20);
  EXPECT_EQ(data->train->features(), 1);
  EXPECT_EQ(data->train->classes(), 2);
}

TEST(Csv, GivesBothSetsAtLeastOneRow) {
  for (const double fraction : {1e-9, 0.5, 1 - 1e-9}) {
    CsvOptions options;
    options.test_fraction = fraction;
    const auto data = Load(CountingTable(2), options);
    ASSERT_OK(data);
    EXPECT_EQ(data->train->rows(), 1) << fraction;
    EXPECT_EQ(data->test->rows(), 1) << fraction;
  }
}

TEST(Csv, PutsEachRowInOneSetInTheOrderOfTheFile) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CsvOptions options;
    options.seed = seed;
    const auto data = Load(CountingTable(50), options);
    ASSERT_OK(data);
    const std::vector<float> train = Column(*data->train, 0);
    const std::vector<float> test = Column(*data->test, 0);
    EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
    EXPECT_TRUE(std::is_sorted(test.begin(), test.end()));
    std::set<float> both(train.begin(), train.end());
    both.insert(test.begin(), test.end());
    EXPECT_EQ(both.size(), 50u);
  }
}

TEST(Csv, ChoosesTheTestRowsBySeed) {
  CsvOptions one;
  one.seed = 1;
  CsvOptions two;
  two.seed = 2;
  const std::string text = CountingTable(100);
  const auto first = Column(*Load(text, one)->test, 0);
  EXPECT_EQ(first, Column(*Load(text, one)->test, 0));
  EXPECT_NE(first, Column(*Load(text, two)->test, 0));
}

TEST(Csv, StandardizesByTheTrainingRows) {
  const base::RandomStream random(1, 0);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::string text = "x,label,y\n";
    for (int64_t row = 0; row < 200; ++row) {
      absl::StrAppendFormat(&text, "%.17g,%d,%.17g\n", 1e9 + 3 * random.Normal(2 * row), row % 2,
                            1e-9 * random.Normal(2 * row + 1));
    }
    CsvOptions options;
    options.seed = seed;
    const auto data = Load(text, options);
    ASSERT_OK(data);
    for (const int64_t feature : {0, 1}) {
      double sum = 0;
      double square = 0;
      for (const float value : Column(*data->train, feature)) {
        sum += value;
        square += double{value} * value;
      }
      EXPECT_NEAR(sum / 160, 0, 1e-6);
      EXPECT_NEAR(square / 160, 1, 1e-6);
    }
  }
}

TEST(Csv, UsesTheTrainingStatisticsForTheTestSet) {
  const auto data = Load(CountingTable(50));
  ASSERT_OK(data);
  const std::vector<float> train = Column(*data->train, 0);
  std::vector<float> all = train;
  for (const float value : Column(*data->test, 0)) all.push_back(value);
  std::sort(all.begin(), all.end());
  // The feature counts rows, so under one affine map neighbors stay equally far apart.
  const float step = (all.back() - all.front()) / 49;
  for (size_t i = 1; i < all.size(); ++i) EXPECT_NEAR(all[i] - all[i - 1], step, 1e-5);
}

TEST(Csv, ReadsAConstantFeatureAsZero) {
  std::string text = "x,label\n";
  for (int row = 0; row < 30; ++row) absl::StrAppend(&text, "0.1,", row % 2, "\n");
  const auto data = Load(text);
  ASSERT_OK(data);
  EXPECT_THAT(Column(*data->train, 0), Each(0.0f));
  EXPECT_THAT(Column(*data->test, 0), Each(0.0f));
}

TEST(Csv, TakesIntegersFromZeroAsClasses) {
  std::string text = "label,x\n";
  for (int row = 0; row < 12; ++row) absl::StrAppend(&text, 11 - row, ",1\n");
  const auto data = Load(text);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->classes(), 12);
  std::vector<int32_t> train = LabelsOf(*data->train);
  std::reverse(train.begin(), train.end());
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
}

TEST(Csv, NumbersOtherLabelsInSortedOrder) {
  const auto data = Load("x,label\n1,owl\n2,cat\n3,dog\n");
  ASSERT_OK(data);
  EXPECT_EQ(data->train->classes(), 3);
  EXPECT_THAT(AllLabels(*data), UnorderedElementsAre(0, 1, 2));
  // Rows come in order: the features grow, and owl, cat, dog are classes 2, 0, 1.
  const std::vector<int32_t> train = LabelsOf(*data->train);
  const int32_t missing = LabelsOf(*data->test)[0];
  std::vector<int32_t> expected = {2, 0, 1};
  expected.erase(std::find(expected.begin(), expected.end(), missing));
  EXPECT_EQ(train, expected);
}

TEST(Csv, TakesIntegersThatDoNotStartAtZeroAsTexts) {
  const auto data = Load("x,label\n1,5\n2,7\n3,5\n4,7\n5,9\n");
  ASSERT_OK(data);
  EXPECT_EQ(data->train->classes(), 3);
  EXPECT_THAT(AllLabels(*data), UnorderedElementsAre(0, 0, 1, 1, 2));
}

TEST(Csv, FindsTheLabelColumnByName) {
  CsvOptions options;
  options.label_column = "kind of bird";
  const auto data = Load("x,\"kind of bird\",y\n1,a,2\n3,b,4\n", options);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->features(), 2);
  EXPECT_THAT(AllLabels(*data), UnorderedElementsAre(0, 1));
}

TEST(Csv, AcceptsEveryUsualWayToWriteANumber) {
  const auto data = Load("x,label\n-1,0\n1.5,1\n.5,0\n2.,1\n1e3,0\n-2.5E-3,1\n1e-400,0\n\"7\",1\n");
  EXPECT_OK(data);
}

TEST(Csv, RefusesWhatIsNotAFiniteNumber) {
  for (const std::string text :
       {"one", "1 ", " 1", "1.2.3", "0x10", "nan", "inf", "-inf", "1e999", "3.5e38", "1e", "--1"}) {
    EXPECT_THAT(Load(absl::StrCat("x,y,label\n1,2,0\n3,", text, ",1\n")),
                IsRefused(absl::StrFormat(
                    "a.csv:3:3: \"%s\" in column \"y\" is not a finite number", text)));
  }
}

TEST(Csv, HasAFeatureForEachTextOfAColumn) {
  std::string text = "color,x,label,kind\n";
  const char* const colors[] = {"red", "blue", "\"a, b\""};
  for (int row = 0; row < 30; ++row) {
    absl::StrAppend(&text, colors[row % 3], ",", row, ",", row % 2, ",", row % 5 == 0 ? "p" : "q",
                    "\n");
  }
  const auto data = Load(text);
  ASSERT_OK(data);
  EXPECT_THAT(data->encoding.columns, ElementsAre("color", "x", "kind"));
  EXPECT_THAT(data->encoding.categories,
              ElementsAre(ElementsAre("a, b", "blue", "red"), IsEmpty(), ElementsAre("p", "q")));
  ASSERT_EQ(data->train->features(), 6);
  std::set<std::vector<float>> seen;
  for (int64_t row = 0; row < data->train->rows(); ++row) {
    const std::vector<float> features = FeaturesOf(*data->train, row);
    EXPECT_EQ(features[0] + features[1] + features[2], 1.0F);
    EXPECT_EQ(features[4] + features[5], 1.0F);
    seen.emplace(features.begin(), features.begin() + 3);
  }
  EXPECT_EQ(seen.size(), 3U);
  // Columns in another order, and texts that are new.
  std::vector<std::string> notices;
  const CsvOptions options = {
      .on_notice = [&](const std::string& notice) { notices.push_back(notice); }};
  const auto samples = LoadCsvSamples(
      WriteTestFile(TestDirectory(), "b.csv", "kind,color,x\nq,red,0\nr,7,0\nq,blue,0\n"), options,
      data->encoding, 2);
  ASSERT_OK(samples);
  const float x = FeaturesOf(**samples, 0)[3];
  EXPECT_THAT(FeaturesOf(**samples, 0), ElementsAre(0, 0, 1, x, 0, 1));
  EXPECT_THAT(FeaturesOf(**samples, 1), ElementsAre(0, 0, 0, x, 0, 0));
  EXPECT_THAT(notices, ElementsAre("2 fields have none of the texts that the model was trained on, "
                                   "and so 0: \"r\" in column \"kind\" of line 3, ..."));
}

TEST(Csv, DropsColumns) {
  const std::string text = "id,x,note,label\na1,1,,0\na2,2,,1\na3,3,,0\na4,5,,1\n";
  const CsvOptions options = {.dropped_columns = {"note", "id"}};
  const auto data = Load(text, options);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->features(), 1);
  EXPECT_THAT(data->encoding.columns, ElementsAre("x"));
  EXPECT_THAT(data->encoding.categories, IsEmpty());
  // To predict, they may be there or not, and others can be dropped as well.
  for (const std::string other : {"x\n2\n", "note,x\n,2\n", "more,x,id\nm,2,i\n"}) {
    const auto samples = LoadCsvSamples(WriteTestFile(TestDirectory(), "b.csv", other),
                                        {.dropped_columns = {"more"}}, data->encoding, 2);
    ASSERT_OK(samples) << other;
    EXPECT_EQ((*samples)->features(), 1);
  }
  ExpectRefusals({
      {Load(text, {.dropped_columns = {"nota"}}),
       "a.csv:1:1: no column to drop, \"nota\"; the columns are id, x, note, label; did you mean "
       "\"note\"?"},
      {Load(text, {.dropped_columns = {"label"}}),
       "the column \"label\" is to be dropped, but has the labels"},
      {Load(text, {.dropped_columns = {"id", "x", "note"}}),
       "there is no column beside the labels"},
  });
}

TEST(Csv, RefusesColumnsThatAreNeitherNumbersNorFewTexts) {
  std::string many = "x,label\n";
  for (int row = 0; row < 65; ++row) absl::StrAppend(&many, "t", row, ",", row % 2, "\n");
  ExpectRefusals({
      {Load("x,y,label\n1,2,0\n3,,1\n"),
       "a.csv:3:3: the field in column \"y\" is empty: fill in what is missing, leave out the row, "
       "or the column with --drop"},
      {Load("x,y,label\n1,,0\n3,,1\n"), "a.csv:2:3: the field in column \"y\" is empty"},
      {Load("x,label\nred,0\n3,1\n"),
       "a.csv:3:1: \"3\" in column \"x\" is a number, but the rows above have texts, such as "
       "\"red\""},
      {Load("x,label\nr\xff,0\n3,1\n"), ":2:1: the text in column \"x\" is not UTF-8"},
      {Load(many), "a.csv:66:1: column \"x\" has more than 64 different texts"},
  });
  many.resize(many.rfind("t64"));
  EXPECT_OK(Load(many));
}

TEST(Csv, RefusesWhatIsNoTable) {
  std::string many_columns = "c0";
  for (int i = 1; i < 100; ++i) absl::StrAppend(&many_columns, ",c", i);
  const Refusal<std::string> refusals[] = {
      {"", "a.csv:1:1: the file is empty"},
      {"x,y,label\n1,2,0\n1,0\n", "a.csv:3:1: the row has 2 fields, expected 3"},
      {"x,y,label\n1,2,0,4\n", "a.csv:2:1: the row has 4 fields, expected 3"},
      {"x,label\n1,0\n\n2,1\n", "a.csv:3:1: the row has 1 fields, expected 2"},
      {"x,y\n1,2\n", AllOf(HasSubstr("the columns are x, y"), Not(HasSubstr("did you mean")))},
      {many_columns, "c18, c19 and 80 more"},
      {"x,label,x\n1,0,2\n", "a.csv:1:9: a second column is named \"x\""},
      {"x\xff,label\n1,0\n2,1\n", ":1:1: the name of the column is not UTF-8"},
      {"label\n0\n1\n", "a.csv:1:1: there is no column beside the labels"},
      {"x,label\n", "rows after the header: 0, expected at least 2"},
      {"x,label\n1,0\n", "rows after the header: 1, expected at least 2"},
      {"x,label\n1,cat\n2,cat\n",
       "fewer than 2 classes: every label in column \"label\" is \"cat\""},
      {"x,label\n1,cat\n2,\n", "a.csv:3:3: the label in column \"label\" is empty"},
      {"x,label\n1,0\n2,\xff\n", ":3:3: the label in column \"label\" is not"},
      {std::string("x,label\n1,\0\n", 11), "a.csv:2:3: NUL byte"},
  };
  ExpectRefusals([](const std::string& text) { return Load(text); }, refusals);
  ExpectRefusals({
      {Load("x,y,label\n1,2,0\n", {.label_column = "lable"}),
       "a.csv:1:1: no label column \"lable\"; the columns are x, y, label; did you mean "
       "\"label\"?"},
      {Load("x,label\n1,0\n", {.max_bytes = 10}), "10", kResourceExhausted},
      {LoadCsv("/no/such.csv", {}), "/no/such.csv", kNotFound},
  });
}

TEST(Csv, BlankLinesAtTheEndAreNoRows) {
  for (const char* end : {"", "\n", "\n\n\n", "\r\n\n"}) {
    const auto data = Load(CountingTable(20) + end);
    ASSERT_OK(data);
    EXPECT_EQ(data->train->rows() + data->test->rows(), 20);
  }
  EXPECT_THAT(Load(CountingTable(20) + "\n\n7,1\n"), IsRefused("a.csv:22:1: the row has 1 fields"));
}

TEST(Csv, RefusesNumbersToPredictButNotCodesOfClasses) {
  EXPECT_THAT(Load("x,label\n1,10\n2,20\n"), testing::IsOk());
  EXPECT_THAT(Load("x,label\n1,1.5\n2,none\n"), testing::IsOk());
  EXPECT_THAT(Load("x,label\n1,10\n2,20.5\n3,1e300\n"),
              IsRefused(AllOf(HasSubstr("not whole, such as \"20.5\""), HasSubstr("--loss mse"))));
}

constexpr char kPrices[] = "x,price\n1,10.5\n2,-3\n3,7\n4,1e3\n5,0\n";
const CsvOptions kOfNumbers = {.label_column = "price", .labels = LabelKind::kNumbers};

// Returns the targets in the units of the labels.
std::vector<double> NumbersOf(const Dataset& data, const DataEncoding& encoding) {
  std::vector<double> numbers;
  for (int64_t row = 0; row < data.rows(); ++row) {
    numbers.push_back(encoding.NumberOf(data.number(row)));
  }
  return numbers;
}

TEST(CsvOfNumbers, StandardizesThemByTheTrainingRows) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load(kPrices, kOfNumbers));
  EXPECT_EQ(data.train->spec().target, TargetSpec{TargetSpec::Kind::kValues});
  EXPECT_TRUE(data.encoding.labels_are_numbers());
  EXPECT_THAT(data.encoding.class_names, IsEmpty());
  double sum = 0.0, squares = 0.0;
  for (int64_t row = 0; row < 4; ++row) {
    sum += data.train->number(row);
    squares += data.train->number(row) * data.train->number(row);
  }
  EXPECT_NEAR(sum, 0.0, 1e-6);
  EXPECT_NEAR(squares / 4, 1.0, 1e-6);
  std::vector<double> all = NumbersOf(*data.train, data.encoding);
  all.push_back(NumbersOf(*data.test, data.encoding).front());
  EXPECT_THAT(
      all, UnorderedElementsAre(DoubleNear(10.5, 1e-3), DoubleNear(-3, 1e-3), DoubleNear(7, 1e-3),
                                DoubleNear(1000, 1e-3), DoubleNear(0, 1e-3)));
}

TEST(CsvOfNumbers, PredictsWithTheEncodingOfTheTraining) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load(kPrices, kOfNumbers));
  const auto samples = [&](const std::string& text) {
    return LoadCsvSamples(WriteTestFile(TestDirectory(), "b.csv", text), kOfNumbers, data.encoding,
                          /*classes=*/1);
  };
  ASSERT_OK_AND_ASSIGN(const auto labeled, samples("price,x\n5,1\n-2,9\n"));
  EXPECT_THAT(NumbersOf(*labeled, data.encoding),
              ElementsAre(DoubleNear(5, 1e-3), DoubleNear(-2, 1e-3)));
  ASSERT_OK_AND_ASSIGN(const auto bare, samples("x\n1\n"));
  EXPECT_EQ(bare->spec().target.kind, TargetSpec::Kind::kNone);
}

TEST(CsvOfNumbers, RefusesWhatIsNoneAndNothingToPredict) {
  EXPECT_THAT(Load("x,price\n1,2\n2,cheap\n", kOfNumbers),
              IsRefused("\"cheap\" in column \"price\" is not a finite number"));
  EXPECT_THAT(Load("x,price\n1,2\n2,2\n3,2\n", kOfNumbers),
              IsRefused("every label to train on is 2"));
}

constexpr char kHouses[] = "size,price,rooms\n1,10,2\n2,20,4\n3,60,3\n4,50,1\n5,30,5\n";
const CsvOptions kOfSeveral = {.label_column = "rooms,price", .labels = LabelKind::kNumbers};

// Returns the targets of a row in the units of the labels.
std::vector<double> TargetsOf(const Dataset& data, const DataEncoding& encoding, int64_t row) {
  std::vector<float> values(static_cast<size_t>(data.spec().target.shape.elements()));
  data.CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                                      values.size() * sizeof(float)));
  std::vector<double> numbers;
  for (size_t i = 0; i < values.size(); ++i) numbers.push_back(encoding.NumberOf(values[i], i));
  return numbers;
}

TEST(CsvOfSeveralNumbers, AreTargetsInTheOrderOfTheirNames) {
  CsvOptions options = kOfSeveral;
  options.sets = Sets::kTraining;
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load(kHouses, options));
  EXPECT_EQ(data.train->spec().target, (TargetSpec{TargetSpec::Kind::kValues, kernels::Shape{2}}));
  EXPECT_THAT(data.encoding.label_names, ElementsAre("rooms", "price"));
  EXPECT_THAT(data.encoding.label_mean, ElementsAre(DoubleNear(3, 1e-9), DoubleNear(34, 1e-9)));
  EXPECT_THAT(data.encoding.columns, ElementsAre("size"));
  EXPECT_THAT(TargetsOf(*data.train, data.encoding, 2),
              ElementsAre(DoubleNear(3, 1e-4), DoubleNear(60, 1e-4)));
}

TEST(CsvOfSeveralNumbers, ArePredictedWithOrWithoutLabels) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load(kHouses, kOfSeveral));
  const auto samples = [&](const std::string& text, const std::string& labels) {
    return LoadCsvSamples(WriteTestFile(TestDirectory(), "b.csv", text), {.label_column = labels},
                          data.encoding, /*classes=*/2);
  };
  for (const std::string labels : {"label", "rooms,price"}) {
    ASSERT_OK_AND_ASSIGN(const auto labeled, samples("price,rooms,size\n7,9,1\n", labels));
    EXPECT_THAT(TargetsOf(*labeled, data.encoding, 0),
                ElementsAre(DoubleNear(9, 1e-4), DoubleNear(7, 1e-4)));
  }
  ASSERT_OK_AND_ASSIGN(const auto renamed, samples("p,r,size\n7,9,1\n", "r,p"));
  EXPECT_THAT(TargetsOf(*renamed, data.encoding, 0),
              ElementsAre(DoubleNear(9, 1e-4), DoubleNear(7, 1e-4)));
  ASSERT_OK_AND_ASSIGN(const auto bare, samples("size\n1\n", "label"));
  EXPECT_EQ(bare->spec().target.kind, TargetSpec::Kind::kNone);
  EXPECT_THAT(samples("size,price\n1,2\n", "label"), IsRefused("no label column \"rooms\""));
  EXPECT_THAT(samples("size,price\n1,2\n", "price"),
              IsRefused("predicts 2 numbers (rooms, price), but the label columns are price"));
}

TEST(CsvOfSeveralNumbers, RefusesColumnsThatAreNoneOrNothingToPredict) {
  const auto with = [](const std::string& labels, LabelKind kind = LabelKind::kNumbers) {
    return CsvOptions{.label_column = labels, .labels = kind};
  };
  EXPECT_THAT(Load(kHouses, with("rooms,pric")),
              IsRefused(AllOf(HasSubstr("no label column \"pric\""),
                              HasSubstr("did you mean \"price\"?"))));
  EXPECT_THAT(Load(kHouses, with("rooms,rooms")), IsRefused("\"rooms\" is named twice"));
  EXPECT_THAT(Load(kHouses, with("rooms,price", LabelKind::kClasses)), IsRefused("--loss mse"));
  EXPECT_THAT(Load(kHouses, with("size,rooms,price")), IsRefused("at least one feature"));
  EXPECT_THAT(Load("x,a,b\n1,1,5\n2,2,5\n3,3,5\n", with("a,b")),
              IsRefused("column \"b\": every label to train on is 5"));
  EXPECT_THAT(Load("x,a,b\n1,1,red\n2,2,5\n3,3,5\n", with("a,b")),
              IsRefused("\"red\" in column \"b\" is not a finite number"));
  CsvOptions dropped = with("rooms,price");
  dropped.dropped_columns = {"price"};
  EXPECT_THAT(Load(kHouses, dropped), IsRefused("\"price\" is to be dropped"));
}

TEST(CsvOfSeveralNumbers, AColumnMayHaveACommaInItsName) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data,
                       Load("x,\"a,b\"\n1,2\n2,3\n3,5\n", {.label_column = "a,b"}));
  EXPECT_EQ(data.train->classes(), 3);
}

// Writes two tables and what they are together, and returns their specs.
struct TwoAndOne {
  std::string two, one;
};
TwoAndOne WriteTables() {
  const std::string folder = TestDirectory();
  const std::string first = "x,color,label\n1,red,no\n2,blue,yes\n3,red,no\n";
  const std::string a = WriteTestFile(folder, "a.csv", first);
  const std::string b =
      WriteTestFile(folder, "b.csv.gz", Gzip("label,color,x\nyes,green,4\nno,red,5\n"));
  return {absl::StrCat(a, ",", b),
          WriteTestFile(folder, "all.csv", first + "4,green,yes\n5,red,no\n")};
}

TEST(CsvFiles, AreOneTableInTheirOrder) {
  const auto [two, one] = WriteTables();
  for (const uint64_t seed : {1, 2, 3}) {
    const CsvOptions options = {.seed = seed};
    ASSERT_OK_AND_ASSIGN(const TrainTest joined, LoadCsv(two, options));
    ASSERT_OK_AND_ASSIGN(const TrainTest whole, LoadCsv(one, options));
    EXPECT_EQ(joined.encoding, whole.encoding);
    EXPECT_EQ(FingerprintOf(joined), FingerprintOf(whole));
    ASSERT_OK_AND_ASSIGN(const auto samples, LoadCsvSamples(two, options, joined.encoding, 2));
    EXPECT_EQ(samples->rows(), 5);
    EXPECT_THAT(LabelsOf(*samples), ElementsAre(0, 1, 0, 1, 0));
  }
}

TEST(CsvFiles, RefusesAnotherHeaderOrField) {
  const std::string folder = TestDirectory();
  const std::string a = WriteTestFile(folder, "a.csv", "x,y,label\n1,2,0\n2,3,1\n");
  const auto load = [&](const std::string& text) {
    return LoadCsv(absl::StrCat(a, ",", WriteTestFile(folder, "b.csv", text)), {});
  };
  EXPECT_OK(load("label,x,y\n"));  // of no rows
  EXPECT_THAT(load("x,label\n1,0\n"), IsRefused(HasSubstr("/b.csv:1:1: no column \"y\", which ")));
  EXPECT_THAT(load("x,y,z,label\n1,2,3,0\n"),
              IsRefused(HasSubstr("/b.csv:1:1: a column \"z\", which ")));
  EXPECT_THAT(load("1,2,0\n"), IsRefused(HasSubstr("/b.csv:1:1: a column \"1\", which ")));
  EXPECT_THAT(load(""), IsRefused(HasSubstr("/b.csv:1:1: the file is empty")));
  EXPECT_THAT(load("x,y,label\n1,red,0\n"),
              IsRefused(HasSubstr("/b.csv:2:3: \"red\" in column \"y\" is not a finite number")));
  EXPECT_THAT(load("x,y,label\n1,2,0,3\n"), IsRefused(HasSubstr("/b.csv:2:1: the row has 4")));
}

TEST(CsvFiles, ToPredictAllHaveLabelsOrNone) {
  const std::string folder = TestDirectory();
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load("x,c,label\n1,a,0\n2,b,1\n3,a,1\n"));
  WriteTestFile(folder, "p1.csv", "x,c,label\n1,a,0\n");
  WriteTestFile(folder, "p2.csv", "x,c\n1,q\n");
  WriteTestFile(folder, "p3.csv", "c,x\na,5\n");
  std::vector<std::string> notices;
  const CsvOptions options = {
      .on_notice = [&](const std::string& text) { notices.push_back(text); }};
  EXPECT_THAT(LoadCsvSamples(folder + "/p[12].csv", options, data.encoding, 2),
              IsRefused(HasSubstr("/p2.csv:1:1: the file has no labels, unlike ")));
  ASSERT_OK_AND_ASSIGN(const auto samples,
                       LoadCsvSamples(folder + "/p[23].csv", options, data.encoding, 2));
  EXPECT_EQ(samples->rows(), 2);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("of line 2 of ")));
}

TEST(CsvSamplesOfNumbers, RefusesATextInAColumnOfNumbers) {
  ASSERT_OK_AND_ASSIGN(const TrainTest data, Load(CountingTable(10)));
  EXPECT_THAT(
      LoadCsvSamples(WriteTestFile(TestDirectory(), "b.csv", "x\nred\n"), {}, data.encoding, 2),
      IsRefused("\"red\" in column \"x\" is not a finite number"));
}

TEST(Csv, RefusesATestFractionThatLeavesASetEmpty) {
  for (const double fraction : {0.0, 1.0, -0.5, 2.0, std::nan("")}) {
    CsvOptions options;
    options.test_fraction = fraction;
    EXPECT_THAT(Load(CountingTable(10), options), IsRefused("test fraction"));
  }
}

// A held-out value may be so far from the training values that standardizing it overflows.
TEST(Csv, RefusesATestValueThatCannotBeStandardized) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CsvOptions options;
    options.seed = seed;
    const auto data = Load("x,label\n1e-30,0\n2e-30,1\n3e38,0\n", options);
    if (data.ok()) continue;
    ++refused;
    EXPECT_THAT(data, IsRefused("test set: value of row 0, feature 0 is inf"));
  }
  EXPECT_GT(refused, 0);
}

// A table with a class of each kind, and the encoding of its training rows.
class CsvSamples : public ::testing::Test {
 protected:
  static std::string Text(bool with_labels) {
    std::string text = with_labels ? "x,kind,y,constant\n" : "x,y,constant\n";
    for (int row = 0; row < 40; ++row) {
      absl::StrAppend(&text, row, ".5,", with_labels ? row % 3 == 0 ? "no," : "yes," : "",
                      row * row, ",7\n");
    }
    return text;
  }
  absl::StatusOr<std::shared_ptr<const Dataset>> LoadAll(const std::string& text) const {
    return LoadCsvSamples(WriteTestFile(TestDirectory(), "b.csv", text), options_, data_.encoding,
                          /*classes=*/2);
  }

  const CsvOptions options_ = {.label_column = "kind"};
  const TrainTest data_ = Load(Text(true), options_).value();
};

TEST_F(CsvSamples, AreAllRowsEncodedAsTheyWereToTrain) {
  EXPECT_THAT(data_.encoding.columns, ElementsAre("x", "y", "constant"));
  EXPECT_THAT(data_.encoding.class_names, ElementsAre("no", "yes"));
  EXPECT_EQ(data_.encoding.NameOf(1), "yes");
  EXPECT_EQ(data_.encoding.stddev[2], 0.0);
  const auto all = LoadAll(Text(true)).value();
  ASSERT_EQ(all->rows(), 40);
  int64_t found = 0;
  for (const auto& set : {data_.train, data_.test}) {
    for (int64_t row = 0; row < set->rows(); ++row, ++found) {
      const std::vector<float> features = FeaturesOf(*set, row);
      int64_t place = 0;
      while (FeaturesOf(*all, place) != features) ASSERT_LT(++place, all->rows());
      EXPECT_EQ(all->label(place), set->label(row));
      EXPECT_EQ(all->label(place), place % 3 == 0 ? 0 : 1);
    }
  }
  EXPECT_EQ(found, 40);
}

TEST_F(CsvSamples, NeedNoLabels) {
  const auto labeled = LoadAll(Text(true)).value();
  const auto unlabeled = LoadAll(Text(false)).value();
  ASSERT_EQ(unlabeled->rows(), 40);
  EXPECT_EQ(unlabeled->spec().target, TargetSpec{});
  for (int64_t row = 0; row < 40; ++row) {
    EXPECT_EQ(FeaturesOf(*unlabeled, row), FeaturesOf(*labeled, row));
  }
}

TEST_F(CsvSamples, FindColumnsByName) {
  const auto all = LoadAll("constant,kind,y,x\n9,yes,4,2.5\n").value();
  ASSERT_EQ(all->rows(), 1);
  EXPECT_EQ(FeaturesOf(*all, 0), FeaturesOf(*LoadAll(Text(true)).value(), 2));
  EXPECT_EQ(all->label(0), 1);
}

TEST_F(CsvSamples, RefuseOtherColumnsAndClasses) {
  ExpectRefusals({
      {LoadAll("x,y\n1,2\n"),
       "b.csv:1:1: no column \"constant\", which the model was trained on; the columns are x, y"},
      {LoadAll("x,y,z,constant\n1,2,3,4\n"),
       "not trained on a column \"z\", but on x, y, constant"},
      {LoadAll("x,y,constant,kind\n1,2,3,no\n1,2,3,maybe\n"),
       "b.csv:3:7: \"maybe\" in column \"kind\" is none of the classes"},
      {LoadAll("x,y,constant\n"), "no rows"},
      {LoadAll("x,y,x\n"), "a second column is named \"x\""},
  });
}

TEST(Csv, CallsClassesByTheirNumbersWhereThatIsTheirName) {
  const TrainTest data = Load(CountingTable(10)).value();
  EXPECT_THAT(data.encoding.class_names, IsEmpty());
  EXPECT_EQ(data.encoding.NameOf(1), "1");
}

TEST(Csv, EitherLoadsOrRefusesADamagedFile) {
  const std::string text = "x,\"y\",label\n1,2.5,cat\n-3,\"4\",dog\n5e1,6,cat\n";
  const std::string directory = TestDirectory();
  const base::RandomStream random(2, 0);
  for (uint64_t i = 0; i < 300; ++i) {
    std::string damaged = text;
    damaged[random.Below(2 * i, damaged.size())] = static_cast<char>(random.Below(2 * i + 1, 256));
    const auto data = LoadCsv(WriteTestFile(directory, "a.csv", damaged), {});
    if (data.ok()) {
      EXPECT_EQ(data->train->features(), 2);
    } else {
      EXPECT_THAT(data, IsRefused("a.csv"));
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
