#include "engine/data/data_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::ElementsAre;
using testing::StatusIs;

// Writes empty files into a new folder, and returns it.
std::string FolderOf(const std::vector<std::string>& names) {
  const std::string folder = TestDirectory() + "/shards";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const std::string& name : names) WriteTestFile(folder, name, "x");
  return folder;
}

// Returns the files of a spec without the folder before them.
std::vector<std::string> FilesIn(const std::string& folder, const std::string& spec) {
  const absl::StatusOr<std::vector<std::string>> files = DataFilesOf(spec);
  std::vector<std::string> names;
  for (const std::string& file : files.ok() ? *files : std::vector<std::string>()) {
    names.push_back(
        !folder.empty() && file.starts_with(folder + "/") ? file.substr(folder.size() + 1) : file);
  }
  return names;
}

TEST(DataFiles, ASpecIsItselfUnlessItNamesSeveral) {
  for (const char* spec : {"", "-", "/dev/null", "synthetic:10x2x2", "missing.csv"}) {
    EXPECT_THAT(FilesIn("", spec), ElementsAre(spec));
    EXPECT_EQ(FirstDataFile(spec), spec);
  }
}

TEST(DataFiles, CommasSeparateNamesInTheOrderGiven) {
  const std::string folder = FolderOf({"a.csv", "b.csv", "b,a.csv"});
  const std::string b = folder + "/b.csv", a = folder + "/a.csv";
  EXPECT_THAT(FilesIn(folder, absl::StrCat(b, ",", a)), ElementsAre("b.csv", "a.csv"));
  EXPECT_THAT(FilesIn(folder, folder + "/b,a.csv"), ElementsAre("b,a.csv"));  // there is one
  EXPECT_EQ(FirstDataFile(absl::StrCat(b, ",", a)), b);
}

TEST(DataFiles, APatternIsWhatMatchesInTheOrderOfBytes) {
  const std::string folder = FolderOf({"p10.csv", "p2.csv", "P3.csv", "q.csv", "r*.csv", "rx.csv"});
  EXPECT_THAT(FilesIn(folder, folder + "/[pP]*.csv"), ElementsAre("P3.csv", "p10.csv", "p2.csv"));
  EXPECT_THAT(FilesIn(folder, absl::StrCat(folder, "/q.csv,", folder, "/p?.csv")),
              ElementsAre("q.csv", "p2.csv"));
  EXPECT_THAT(FilesIn(folder, folder + "/r*.csv"), ElementsAre("r*.csv"));  // there is one
  EXPECT_THAT(DataFilesOf(folder + "/z*.csv"),
              StatusIs(absl::StatusCode::kNotFound, "/z*.csv: no file matches"));
}

TEST(DataFiles, AFolderOfOneKindOfFilesIsThese) {
  for (const std::string ending : {"csv", "jsonl", "txt", "bin", "npy"}) {
    const std::string folder = FolderOf(
        {"b." + ending, "a." + ending + ".gz", "_SUCCESS", ".crc", "info.json", "README.md"});
    EXPECT_THAT(FilesIn(folder, folder), ElementsAre("a." + ending + ".gz", "b." + ending));
    EXPECT_THAT(FilesIn(folder, folder + "/"), ElementsAre("a." + ending + ".gz", "b." + ending));
  }
}

TEST(DataFiles, OtherFoldersStayFolders) {
  const std::vector<std::vector<std::string>> others = {{},
                                                        {"README.md"},
                                                        {"a.csv", "b.txt"},
                                                        {"a.csv", "photo.jpg"},
                                                        {"train.bin", "val.bin"},
                                                        {"train.npy"},
                                                        {"x_test.npy"},
                                                        {"y_train.npy.gz", "z.npy"},
                                                        {"data_batch_1.bin", "test_batch.bin"},
                                                        {"train-images-idx3-ubyte", "readme.txt"}};
  for (const std::vector<std::string>& names : others) {
    const std::string folder = FolderOf(names);
    EXPECT_THAT(FilesIn("", folder), ElementsAre(folder));
  }
  const std::string folder = FolderOf({"a.csv"});
  std::filesystem::create_directories(folder + "/class.csv");
  EXPECT_THAT(FilesIn("", folder), ElementsAre(folder));
}

TEST(DataFiles, RefusesEmptyNamesAndAFileThatIsNamedTwice) {
  const std::string folder = FolderOf({"a.csv", "b.csv"});
  std::filesystem::create_symlink("a.csv", folder + "/c.csv");
  const std::string a = folder + "/a.csv";
  for (const std::string& spec : {a + ",", "," + a, a + ",," + folder + "/b.csv"}) {
    const auto files = DataFilesOf(spec);
    EXPECT_THAT(files, StatusIs(absl::StatusCode::kInvalidArgument, "names of files with commas"));
    EXPECT_EQ(base::ClassOf(files.status()), base::ErrorClass::kUsage);
  }
  for (const std::string& again : {a, folder + "/./a.csv", folder + "/c.csv", folder + "/?.csv"}) {
    EXPECT_THAT(
        DataFilesOf(absl::StrCat(a, ",", again)),
        StatusIs(absl::StatusCode::kInvalidArgument, "is among the files of the data twice"));
  }
}

}  // namespace
}  // namespace stagecoach::engine
