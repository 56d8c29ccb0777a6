#include "engine/data/formats/load.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/data/data_fingerprint.h"
#include "engine/data/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kNotFound;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

DataSource Source(const std::string& spec) {
  DataSource source;
  source.spec = spec;
  return source;
}

TEST(LoadData, MakesASyntheticSet) {
  const auto data = LoadData(Source("synthetic:30x4x3"));
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows(), 30);
  EXPECT_EQ(data->train->features(), 4);
  EXPECT_EQ(data->train->classes(), 3);
}

TEST(LoadData, SeedsTheSyntheticSet) {
  DataSource source = Source("synthetic:30x4x3");
  const auto zero = LoadData(source);
  source.seed = 1;
  const auto one = LoadData(source);
  EXPECT_NE(FeaturesOf(*zero->train, 0), FeaturesOf(*one->train, 0));
}

TEST(LoadData, ReadsACsvFileByItsLabelColumn) {
  DataSource source = Source(WriteTestFile(TestDirectory(), "a.csv", "x,kind\n1,a\n2,b\n3,a\n"));
  source.label_column = "kind";
  const auto data = LoadData(source);
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows() + data->test->rows(), 3);
}

TEST(LoadData, ReadsADirectoryOfIdxFiles) {
  const std::string directory = TestDirectory();
  for (const std::string set : {"train", "t10k"}) {
    WriteTestFile(directory, set + "-images-idx3-ubyte", IdxFile({2, 1, 1}, "ab"));
    WriteTestFile(directory, set + "-labels-idx1-ubyte", IdxFile({2}, std::string("\0\1", 2)));
  }
  const auto data = LoadData(Source(directory));
  ASSERT_OK(data);
  EXPECT_THAT(LabelsOf(*data->test), ElementsAre(0, 1));
}

TEST(LoadData, FollowsALinkToADirectory) {
  const std::string folder = TestDirectory();
  std::filesystem::create_directories(folder + "/files");
  for (const char* name : {"/files/train.bin", "/files/val.bin"}) {
    WriteTestFile(folder, name + 1, std::string(600, '\1'));
  }
  std::filesystem::create_directory_symlink(folder + "/files", folder + "/link");
  EXPECT_OK(LoadData(Source(folder + "/link")));
  EXPECT_FALSE(IsDivided(Source(folder + "/link")));
}

TEST(LoadData, ReadsSeveralFilesOfOneFormat) {
  const std::string folder = TestDirectory();
  std::filesystem::create_directories(folder + "/shards");
  for (const char* name : {"shards/1.csv", "shards/2.csv"}) {
    WriteTestFile(folder, name, "x,label\n1,a\n3,b\n");
  }
  const std::string a = WriteTestFile(folder, "a.csv", "x,label\n1,a\n3,b\n");
  DataSource source = Source(folder + "/shards");
  EXPECT_TRUE(IsDivided(source));
  EXPECT_EQ(LoadData(source)->train->rows() + LoadData(source)->test->rows(), 4);
  source.spec += "," + a;
  EXPECT_EQ(LoadData(source)->train->rows() + LoadData(source)->test->rows(), 6);
  source = Source(a);
  source.test_spec = folder + "/shards";
  EXPECT_EQ(LoadData(source)->train->rows(), 2);
  EXPECT_EQ(LoadData(source)->test->rows(), 4);
}

TEST(LoadData, RefusesSeveralFilesThatAreNoDataSet) {
  const std::string folder = TestDirectory();
  const std::string a = WriteTestFile(folder, "a.csv", "x,label\n1,a\n3,b\n");
  const auto with = [&](const std::string& name) {
    return LoadData(Source(absl::StrCat(a, ",", folder, "/", name)));
  };
  WriteTestFile(folder, "b.txt", "text");
  WriteTestFile(folder, "b.xls", "text");
  WriteTestFile(folder, "p.csv", "PAR1");
  std::filesystem::create_directories(folder + "/dir.csv");
  EXPECT_THAT(with("a.csb"),
              StatusIs(kNotFound, "a.csb: no such file or directory; did you mean a.csv?"));
  EXPECT_THAT(with("z*.csv"), StatusIs(kNotFound, "no file matches"));
  EXPECT_THAT(with("b.txt"), IsRefused("b.txt: its format is text, and that of "));
  EXPECT_THAT(with("b.xls"), IsRefused("b.xls: its format is not known, and that of "));
  EXPECT_THAT(with("p.csv"), IsRefused("p.csv: is a Parquet file"));
  EXPECT_THAT(with("dir.csv"), IsRefused("dir.csv is a directory, and not one whose files"));
  EXPECT_THAT(with("a.csv"), IsRefused("twice"));
  // Any file may be IDX, which takes one name.
  WriteTestFile(folder, "c.xls", "text");
  EXPECT_THAT(LoadData(Source(folder + "/*.xls")),
              IsRefused("b.xls and 1 other: the format IDX takes one name; several are read of"));
}

TEST(LoadData, RefusesWhatIsNoData) {
  const std::string folder = TestDirectory();
  WriteTestFile(folder, "num.csv", "x,label\n1,a\n2,b\n");
  ExpectRefusals({
      {LoadData(Source("synthetic:30x4")), "\"30x4\", expected ROWSxFEATURESxCLASSES"},
      {LoadData(Source("/no/such.csv")), "/no/such.csv", kNotFound},
      {LoadData(Source("/no/such/directory")), "/no/such/directory: no such file or directory",
       kNotFound},
      {LoadData(Source("")),
       "expected a directory of IDX files, a folder of .png and .jpg files in a subfolder per "
       "class, a directory of CIFAR-10 files, a directory of .npy "},
      {LoadData(Source(folder + "/num.cvs")),
       "/num.cvs: no such file or directory; did you mean num.csv?", kNotFound},
      {LoadData({.spec = "synthetic:30x4x3", .train_rows = 31}),
       "synthetic:30x4x3: training rows: asked for 31 rows of a set that has 30"},
      {LoadData({.spec = "synthetic:30x4x3", .train_rows = -1}), "asked for -1 rows"},
  });
}

TEST(LoadData, ListsTheFormsForWhatIsInNone) {
  const std::string folder = TestDirectory();
  WriteTestFile(folder, "cat.gif", "GIF89a");
  WriteTestFile(folder, "dog.gif", "GIF89a");
  for (const char* name : {"", "/cat.gif", "/a.json", "/a.json.gz", "/a.npz", "/a.md"}) {
    const std::string data = folder + name;
    if (*name != '\0') WriteTestFile(folder, name + 1, std::string(20, 'x'));
    EXPECT_THAT(LoadData(Source(data)),
                IsRefused(AllOf(HasSubstr(data), HasSubstr("known form, expected a directory of "
                                                           "IDX files, a folder of "))));
  }
  const DataEncoding of_images = {.mean = {0}, .stddev = {1}};
  EXPECT_THAT(LoadSamples(Source(folder), of_images, 2), IsRefused("known form, expected"));
  EXPECT_THAT(LoadSamples(Source(folder + "/cat.gif"), of_images, 2),
              IsRefused("other forms are a directory of IDX"));
}

TEST(LoadData, SaysHowParquetBecomesATable) {
  const std::string path = WriteTestFile(TestDirectory(), "a.parquet", "PAR1 and so on");
  const std::string csv = path.substr(0, path.size() - 8) + ".csv";
  EXPECT_THAT(LoadData(Source(path)),
              IsRefused(absl::StrCat(path,
                                     ": is a Parquet file, which is not read; this makes a "
                                     "table of it: python3 -c \"import pandas; "
                                     "pandas.read_parquet('",
                                     path, "').to_csv('", csv, "', index=False)\"")));
}

// Each of them is what it is without the compression.
TEST(LoadData, ReadsCompressedFiles) {
  const std::string folder = TestDirectory();
  const auto expect_same = [&](DataSource plain, const std::string& compressed) {
    const auto expected = LoadData(plain);
    plain.spec = compressed;
    const auto data = LoadData(plain);
    ASSERT_OK(expected) << plain.spec;
    ASSERT_OK(data) << plain.spec;
    EXPECT_EQ(data->encoding, expected->encoding);
    EXPECT_EQ(FingerprintOf(*data), FingerprintOf(*expected)) << plain.spec;
  };
  const std::string text(600, 'b');
  const std::string ids = FormatNpyHeader("<u2", 300) + text;
  for (const auto& [name, contents] :
       {std::pair<std::string, std::string>("a.csv", "x,label\n1,a\n2,b\n3,a\n4,b\n"),
        {"a.txt", text},
        {"a.npy", ids}}) {
    DataSource source = Source(WriteTestFile(folder, name, contents));
    source.tokens.context = 10;
    expect_same(source, WriteTestFile(folder, name + ".gz", Gzip(contents)));
    // The content counts, not the name.
    expect_same(source, WriteTestFile(folder, "other_" + name, Gzip(contents)));
  }
  std::filesystem::create_directories(folder + "/plain");
  std::filesystem::create_directories(folder + "/gz");
  // The header of one axis, with another one put in.
  std::string x = FormatNpyHeader("<f4", 2);
  x.replace(x.find("(2,), }  "), 9, "(2, 1), }");
  const std::string y = FormatNpyHeader("|u1", 2);
  for (const char* set : {"train", "test"}) {
    const std::string x_file = x + std::string("\0\0\0\0\0\0\x80\x3f", 8);
    const std::string y_file = y + std::string("\0\x01", 2);
    WriteTestFile(folder + "/plain", absl::StrCat("x_", set, ".npy"), x_file);
    WriteTestFile(folder + "/plain", absl::StrCat("y_", set, ".npy"), y_file);
    WriteTestFile(folder + "/gz", absl::StrCat("x_", set, ".npy.gz"), Gzip(x_file));
    WriteTestFile(folder + "/gz", absl::StrCat("y_", set, ".npy"), y_file);
  }
  expect_same(Source(folder + "/plain"), folder + "/gz");
}

// A sparse file takes no room on the disk.
TEST(LoadData, ReportsAFileAboveTheLimitAsBadContent) {
  const std::string path = WriteTestFile(TestDirectory(), "a.csv", "x,label\n");
  std::filesystem::resize_file(path, (uint64_t{2} << 30) + 1);
  EXPECT_THAT(LoadData(Source(path)), IsRefused("a.csv"));
  std::filesystem::remove(path);
}

TEST(LoadData, KeepsTheFirstTrainingRowsOnRequest) {
  DataSource source = Source("synthetic:30x4x3");
  const auto all = LoadData(source);
  source.train_rows = 10;
  const auto some = LoadData(source);
  ASSERT_OK(some);
  EXPECT_EQ(some->train->rows(), 10);
  EXPECT_EQ(some->test->rows(), 6);
  for (int64_t row = 0; row < 10; ++row) {
    EXPECT_EQ(FeaturesOf(*some->train, row), FeaturesOf(*all->train, row));
  }
}

// Both sets use the classes and statistics of one training set, which is then the whole file.
TEST(LoadData, HasNumbersAsLabelsOnlyWhereTheyMayBe) {
  EXPECT_THAT(LoadData({.spec = "synthetic:20x3x2", .labels = LabelKind::kNumbers}),
              IsRefused("synthetic:20x3x2: has classes"));
  const DataEncoding encoding = {.label_mean = {0.0}, .label_stddev = {2.0}};
  EXPECT_THAT(LoadSamples({.spec = "synthetic:20x3x2"}, encoding, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "it predicts numbers"));
}

TEST(LoadData, TakesATestSetFromAnotherFile) {
  const std::string folder = TestDirectory();
  DataSource source = Source(WriteTestFile(folder, "a.csv", "x,label\n1,a\n3,b\n1,a\n3,b\n5,c\n"));
  source.test_spec = WriteTestFile(folder, "b.csv", "label,x\nc,3\na,1\n");
  const auto data = LoadData(source);
  ASSERT_OK(data);
  EXPECT_THAT(LabelsOf(*data->train), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(LabelsOf(*data->test), ElementsAre(2, 0));
  EXPECT_EQ(FeaturesOf(*data->test, 0), FeaturesOf(*data->train, 1));
  source.test_spec = WriteTestFile(folder, "c.csv", "x\n1\n");
  EXPECT_THAT(LoadData(source), IsRefused("c.csv: has no labels"));
}

TEST(LoadData, NeedsNoTestFilesInADirectoryThatIsTestedWithAnother) {
  const std::string folder = TestDirectory();
  std::filesystem::create_directories(folder + "/train");
  std::filesystem::create_directories(folder + "/test");
  const auto write = [](const std::string& path, const std::string& set) {
    WriteTestFile(path, set + "-images-idx3-ubyte", IdxFile({2, 1, 1}, "ab"));
    WriteTestFile(path, set + "-labels-idx1-ubyte", IdxFile({2}, std::string("\0\1", 2)));
  };
  write(folder + "/train", "train");
  write(folder + "/test", "t10k");
  DataSource source = Source(folder + "/train");
  EXPECT_THAT(LoadData(source), StatusIs(kNotFound, "t10k"));
  source.test_spec = folder + "/test";
  EXPECT_OK(LoadData(source));
}

TEST(LoadData, HoldsBackTheShareOfAFileThatIsAskedFor) {
  const std::string folder = TestDirectory();
  std::string table = "x,label\n";
  for (int row = 0; row < 10; ++row) absl::StrAppend(&table, row, ",", row % 2, "\n");
  DataSource csv = Source(WriteTestFile(folder, "a.csv", table));
  DataSource text = Source(WriteTestFile(folder, "a.txt", std::string(100, 'x')));
  text.tokens.context = 1;
  EXPECT_EQ(LoadData(csv)->test->rows(), 2);
  EXPECT_EQ(LoadData(text)->test->rows(), 9);
  csv.test_fraction = text.test_fraction = 0.4;
  EXPECT_EQ(LoadData(csv)->test->rows(), 4);
  EXPECT_EQ(LoadData(text)->test->rows(), 39);
  for (const double fraction : {0.0, 1.0}) {
    csv.test_fraction = text.test_fraction = fraction;
    for (const DataSource& source : {csv, text}) {
      EXPECT_THAT(LoadData(source), IsRefused("test fraction"));
    }
  }
  EXPECT_TRUE(IsDivided(csv));
  EXPECT_TRUE(IsDivided(text));
  EXPECT_FALSE(IsDivided(Source(folder)));
  EXPECT_FALSE(IsDivided(Source("synthetic:30x4x3")));
}

TEST(LoadSamples, GivesTheTestSetOfSyntheticData) {
  const DataSource source = Source("synthetic:30x4x3");
  const TrainTest data = LoadData(source).value();
  const auto samples = LoadSamples(source, data.encoding, 3).value();
  ASSERT_EQ(samples->rows(), data.test->rows());
  EXPECT_EQ(FeaturesOf(*samples, 0), FeaturesOf(*data.test, 0));
}

// Without the statistics that standardized them, they would be other samples.
TEST(LoadSamples, RefusesDataOfAnotherKindThanTheModelKnows) {
  const DataEncoding none, table = {.mean = {0}, .stddev = {1}, .columns = {"x"}},
                           images = {.mean = {0}, .stddev = {1}};
  const std::string folder = TestDirectory();
  const std::string csv = WriteTestFile(folder, "a.csv", "x,label\n1,0\n2,1\n");
  WriteTestFile(folder, "t10k-images-idx3-ubyte", IdxFile({2, 1, 1}, "ab"));
  const auto refused = [](const std::string& kind) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, "not trained on " + kind);
  };
  for (const DataEncoding& other : {table, images}) {
    EXPECT_THAT(LoadSamples(Source("synthetic:30x4x3"), other, 3), refused("synthetic data"));
  }
  for (const DataEncoding& other : {none, images}) {
    EXPECT_THAT(LoadSamples(Source(csv), other, 2), refused("a table"));
  }
  for (const DataEncoding& other : {none, table}) {
    EXPECT_THAT(LoadSamples(Source(folder), other, 2), refused("images"));
  }
  EXPECT_OK(LoadSamples(Source(csv), table, 2));
  EXPECT_THAT(LoadSamples(Source("/no/such.csv"), table, 2), StatusIs(kNotFound));
}

}  // namespace
}  // namespace stagecoach::engine
