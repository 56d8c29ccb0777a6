#include "base/system/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/system/system_calls.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::base {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Compresses `contents` into one gzip member.
std::string Gzip(const std::string& contents) {
  z_stream stream = {};
  STAGECOACH_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK,
                   "deflateInit2");
  std::string compressed(deflateBound(&stream, contents.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(contents.data()));
  stream.avail_in = static_cast<uInt>(contents.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  STAGECOACH_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate");
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

// Returns bytes that do not compress to almost nothing and cover several buffers.
std::string LargeText() {
  std::string text;
  for (int64_t i = 0; text.size() < 300'000; ++i) text += absl::StrCat(i * i % 9973, ",");
  return text;
}

class FileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  std::string Create(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
    return Path(name);
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const testing::TestFolder folder_;
  const std::string directory_ = folder_.path();
};

TEST_F(FileTest, ReadReturnsEveryByte) {
  std::string contents = LargeText();
  contents[100] = '\0';
  EXPECT_EQ(*ReadFile(Create("a", contents), 1 << 20), contents);
}

TEST_F(FileTest, ReadAcceptsAFileOfExactlyTheLimit) {
  EXPECT_EQ(*ReadFile(Create("a", "12345"), 5), "12345");
  EXPECT_EQ(*ReadFile(Create("b", ""), 0), "");
}

TEST_F(FileTest, ReadRefusesALargerFileAndNamesPathAndLimit) {
  const absl::Status status = ReadFile(Create("a", "123456"), 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(Path("a")), HasSubstr("5 bytes")));
}

TEST_F(FileTest, ReadHoldsTheLimitWhereTheSizeIsUnknown) {
  EXPECT_EQ(ReadFile("/proc/self/maps", 10).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(ReadFile("/proc/self/maps", 1 << 24)->empty());
}

TEST_F(FileTest, MissingFileIsNotFoundAndNamesThePath) {
  const absl::Status status = ReadFile(Path("absent"), 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("absent")));
}

TEST_F(FileTest, ReadRefusesWhatIsNoRegularFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const std::string& path : {directory_, Path("pipe"), std::string("/dev/zero")}) {
    EXPECT_EQ(ReadFile(path, 1 << 20).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

TEST_F(FileTest, AnInputMayBeAPipeOrADevice) {
  ASSERT_OK(WriteFileAtomically(Path("file"), "content"));
  EXPECT_EQ(*ReadInput(Path("file"), 7), "content");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { EXPECT_OK(WriteFileAtomically(Path("pipe"), "content")); });
  EXPECT_EQ(*ReadInput(Path("pipe"), 7), "content");
  writer.join();
  EXPECT_EQ(*ReadInput("/dev/null", 7), "");
  EXPECT_THAT(ReadInput("/dev/zero", 1 << 20), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(ReadInput(directory_, 7), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(FileTest, GzipReadAcceptsPlainFiles) {
  EXPECT_EQ(*ReadGzipFile(Create("a", "plain"), 5), "plain");
  EXPECT_EQ(*ReadGzipFile(Create("b", ""), 5), "");
  EXPECT_EQ(*ReadGzipFile(Create("c", "\x1f"), 5), "\x1f");
}

TEST_F(FileTest, GzipReadUncompresses) {
  const std::string contents = LargeText();
  EXPECT_EQ(*ReadGzipFile(Create("a", Gzip(contents)), 1 << 20), contents);
}

TEST_F(FileTest, GzipReadUncompressesAnEmptyMember) {
  EXPECT_EQ(*ReadGzipFile(Create("a", Gzip("")), 0), "");
  EXPECT_EQ(*ReadInput(Create("a", Gzip("what a user names")), 100), "what a user names");
}

TEST_F(FileTest, GzipReadJoinsMembers) {
  EXPECT_EQ(*ReadGzipFile(Create("a", Gzip("one ") + Gzip("") + Gzip("two")), 100), "one two");
}

TEST_F(FileTest, GzipReadAcceptsAResultOfExactlyTheLimit) {
  const std::string contents = LargeText();
  const int64_t size = static_cast<int64_t>(contents.size());
  EXPECT_EQ(*ReadGzipFile(Create("a", Gzip(contents)), size), contents);
}

TEST_F(FileTest, GzipReadRefusesAResultBeyondTheLimit) {
  const std::string bomb = Gzip(std::string(50'000'000, 'x'));
  ASSERT_LT(bomb.size(), 60'000);
  EXPECT_EQ(ReadGzipFile(Create("a", bomb), 60'000).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(FileTest, GzipReadBufferStaysWithinTheLimit) {
  const std::string contents = LargeText();
  const int64_t limit = static_cast<int64_t>(contents.size()) + 100;
  const auto read = ReadGzipFile(Create("a", Gzip(contents)), limit);
  ASSERT_TRUE(read.ok());
  EXPECT_LE(static_cast<int64_t>(read->capacity()), limit);
}

TEST_F(FileTest, GzipReadDetectsEveryTruncation) {
  const std::string compressed = Gzip("some text that is compressed");
  for (size_t size = 2; size < compressed.size(); ++size) {
    EXPECT_EQ(ReadGzipFile(Create("a", compressed.substr(0, size)), 100).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
}

TEST_F(FileTest, GzipReadDetectsDamage) {
  std::string compressed = Gzip("some text that is compressed");
  compressed[compressed.size() - 6] ^= 1;  // in the checksum
  EXPECT_EQ(ReadGzipFile(Create("a", compressed), 100).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(FileTest, GzipReadDetectsTrailingGarbage) {
  for (const std::string& garbage : {std::string("x"), std::string("garbage"), std::string(5, '\0'),
                                     std::string(100'000, 'x')}) {
    EXPECT_EQ(ReadGzipFile(Create("a", Gzip("text") + garbage), 1 << 20).status().code(),
              absl::StatusCode::kDataLoss)
        << garbage.size();
  }
}

TEST_F(FileTest, WriteCreatesAFile) {
  const std::string contents = LargeText();
  ASSERT_EQ(WriteFileAtomically(Path("a"), contents), absl::OkStatus());
  EXPECT_EQ(*ReadFile(Path("a"), 1 << 20), contents);
}

TEST_F(FileTest, WriteReplacesAFileAndLeavesNoOther) {
  Create("a", "a longer old text");
  ASSERT_EQ(WriteFileAtomically(Path("a"), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadFile(Path("a"), 100), "new");
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FileTest, WhatKilledWritersLeftIsRemoved) {
  const std::string own = absl::StrCat("a.tmp.", getpid(), ".0");
  // No process has the largest number.
  for (const std::string& name : {std::string("a.tmp.2147483647.12"), own, std::string("a.tmp.x.1"),
                                  std::string("a.tmp.2147483647"), std::string("tmp.1.2")}) {
    Create(name, "text");
  }
  RemoveLeftTemporaries(Path(""));
  EXPECT_THAT(Names(), UnorderedElementsAre(own, "a.tmp.x.1", "a.tmp.2147483647", "tmp.1.2"));
}

TEST_F(FileTest, WritesPieceByPieceAllOrNothing) {
  Create("a", "old");
  EXPECT_TRUE(WriteFileAtomically(Path("a"), [&](const AppendFunction& append) {
                EXPECT_TRUE(append("one, ").ok());
                EXPECT_EQ(*ReadFile(Path("a"), 100), "old");
                EXPECT_TRUE(append("").ok());
                return append("two");
              }).ok());
  EXPECT_EQ(*ReadFile(Path("a"), 100), "one, two");
  EXPECT_EQ(WriteFileAtomically(Path("a"),
                                [&](const AppendFunction& append) {
                                  EXPECT_TRUE(append("three").ok());
                                  return absl::CancelledError("stop");
                                }),
            absl::CancelledError("stop"));
  EXPECT_EQ(*ReadFile(Path("a"), 100), "one, two");
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FileTest, WriteFollowsALinkAndLeavesIt) {
  const std::string target = directory_ + "/target", link = directory_ + "/link";
  std::filesystem::create_symlink(target, link);
  EXPECT_TRUE(WriteFileAtomically(link, "through the link").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadFile(target, 100).value(), "through the link");
}

TEST_F(FileTest, WriteLeavesADeviceADevice) {
  EXPECT_TRUE(CheckWritable("/dev/null").ok());
  EXPECT_TRUE(WriteFileAtomically("/dev/null", "gone").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(WriteFileAtomically("/dev/full", "too much").message(), HasSubstr("/dev/full"));
}

TEST_F(FileTest, WriteAcceptsAPathWithoutADirectory) {
  const std::filesystem::path old = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  EXPECT_EQ(WriteFileAtomically("bare", "x"), absl::OkStatus());
  std::filesystem::current_path(old);
  EXPECT_THAT(Names(), ElementsAre("bare"));
}

TEST_F(FileTest, FailedWriteRemovesItsTemporary) {
  // A file may not grow beyond one byte; the signal that comes with that would end the program.
  struct rlimit unlimited = {};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const struct rlimit a_byte = {1, unlimited.rlim_max};
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &a_byte);
  const absl::Status status = WriteFileAtomically(Path("a"), "new");
  setrlimit(RLIMIT_FSIZE, &unlimited);
  signal(SIGXFSZ, old_handler);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("a")));
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(FileTest, ADirectoryIsNoFileToWrite) {
  std::filesystem::create_directory(Path("a"));
  for (const std::string& path : {Path("a"), Path("a/"), Path("a/.")}) {
    EXPECT_EQ(CheckWritable(path),
              WithClass(ErrorClass::kOutput, absl::InvalidArgumentError(path + " is a directory")));
    EXPECT_EQ(WriteFileAtomically(path, "new"), CheckWritable(path));
  }
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(FileTest, WriteIntoAMissingDirectoryIsNotFound) {
  EXPECT_EQ(WriteFileAtomically(Path("absent/a"), "x").code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, ReadersNeverSeeAPartOfAConcurrentWrite) {
  const std::string a(200'000, 'a');
  const std::string b(200'000, 'b');
  ASSERT_EQ(WriteFileAtomically(Path("f"), a), absl::OkStatus());
  const auto write = [this](const std::string& contents) {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(WriteFileAtomically(Path("f"), contents), absl::OkStatus());
    }
  };
  std::thread first(write, a);
  std::thread second(write, b);
  for (int i = 0; i < 100; ++i) {
    const auto read = ReadFile(Path("f"), 1 << 20);
    EXPECT_TRUE(read.ok() && (*read == a || *read == b)) << read.status();
  }
  first.join();
  second.join();
}

TEST_F(FileTest, WritableIsWhatADirectoryLetsBeWritten) {
  EXPECT_TRUE(CheckWritable(Path("new")).ok());
  const absl::Status status = CheckWritable(Path("nowhere/new"));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("nowhere/new")));
  ASSERT_TRUE(WriteFileAtomically(Path("new"), "a file").ok());
  EXPECT_THAT(CheckWritable(Path("new/below")).message(), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace stagecoach::base
