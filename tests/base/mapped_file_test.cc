#include "base/system/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/system/file.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::base {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  std::string WriteFileToMap(const std::string& contents) const {
    const std::string path = folder_.path() / "mapped";
    EXPECT_TRUE(WriteFileAtomically(path, contents).ok());
    return path;
  }

 private:
  const testing::TestFolder folder_;
};

TEST_F(MappedFileTest, HasEveryByte) {
  std::string contents(100'000, 'x');
  contents.front() = '\0';
  contents.back() = 'y';
  const auto file = MappedFile::Open(WriteFileToMap(contents));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->contents(), contents);
}

TEST_F(MappedFileTest, MayBeEmpty) {
  const auto file = MappedFile::Open(WriteFileToMap(""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->contents().empty());
}

TEST_F(MappedFileTest, OutlivesWhatItWasMovedFrom) {
  auto first = MappedFile::Open(WriteFileToMap("abc"));
  ASSERT_TRUE(first.ok()) << first.status();
  const MappedFile second = *std::move(first);
  first = absl::UnknownError("");
  EXPECT_EQ(second.contents(), "abc");
}

TEST_F(MappedFileTest, FollowsALink) {
  const std::string path = WriteFileToMap("abc");
  const std::string link = path + ".link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path, link);
  const auto file = MappedFile::Open(link);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->contents(), "abc");
}

TEST_F(MappedFileTest, NamesWhatItCannotMap) {
  const absl::Status missing = MappedFile::Open("/no/such").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/no/such"));
  EXPECT_EQ(MappedFile::Open(::testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stagecoach::base
