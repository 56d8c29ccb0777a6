// A checkpoint that is not what it should be is noticed.
#include "engine/checkpoint/checkpoint.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/hash.h"
#include "engine/checkpoint/compare.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/small_save.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Says;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Receives a file in parts of a few bytes.
class PartsOfAFile final : public FileReceiver {
 public:
  absl::Status Begin(const std::string& /*path*/, const SafetensorsHeader& header) override {
    header_ = header;
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Span<std::byte>> Space() override { return absl::MakeSpan(space_); }
  void Take(int64_t begin, absl::Span<const std::byte> bytes) override {
    EXPECT_EQ(begin, std::ssize(bytes_));
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const SafetensorsHeader& header() const { return header_; }
  const std::string& bytes() const { return bytes_; }

 private:
  SafetensorsHeader header_;
  std::array<std::byte, 300> space_;
  std::string bytes_;
};

auto IsDamaged(const Says& what) { return StatusIs(absl::StatusCode::kDataLoss, what); }

class CheckpointFolder : public ::testing::Test {
 protected:
  // Saves checkpoints of steps 1 and 2.
  CheckpointFolder() {
    for (int64_t step : {1, 2}) {
      const SmallState state(step);
      paths_.push_back(
          BeginAndWrite(WithoutSync(), state.Task(run_, {.newest = 9}), false_).value());
    }
    files_ = FilesIn(path());
  }
  const std::string& path() const { return paths_[1]; }
  std::string PathOf(const std::string& file) const { return absl::StrCat(path(), "/", file); }
  // Writes in place: file systems write a file that is truncated and filled again to the disk at
  // once.
  void Write(const std::string& file, const std::string& bytes) const {
    const bool is_there = std::filesystem::exists(PathOf(file));
    std::fstream(PathOf(file), is_there ? std::ios::in | std::ios::out | std::ios::binary
                                        : std::ios::out | std::ios::binary)
        << bytes;
    std::filesystem::resize_file(PathOf(file), bytes.size());
  }
  // Checks the whole checkpoint.
  absl::Status Check() const {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path());
    if (!checkpoint.ok()) return checkpoint.status();
    for (const SavedFile& file : checkpoint->manifest().files) {
      PartsOfAFile parts;
      EXPECT_EQ(checkpoint->LoadTo(file.name, parts), checkpoint->Load(file.name).status());
    }
    return checkpoint->Verify();
  }
  // Writes a manifest that matches its hash.
  void WriteManifest(const std::string& text) const {
    Write(kManifestName, text);
    Write(kManifestHashName, absl::StrCat(base::HashOf(text), "  manifest.json\n"));
  }

  const TestFolder folder_;
  const std::string run_ = folder_.path().string();
  const std::atomic<bool> false_ = false;
  std::vector<std::string> paths_;
  std::map<std::string, std::string> files_;  // of step 2
};

TEST_F(CheckpointFolder, IsWhole) {
  EXPECT_OK(Check());
  EXPECT_THAT(files_, SizeIs(6));
}

TEST_F(CheckpointFolder, GivesAFileInParts) {
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path()));
  for (const SavedFile& file : checkpoint.manifest().files) {
    PartsOfAFile parts;
    ASSERT_OK(checkpoint.LoadTo(file.name, parts));
    EXPECT_EQ(parts.bytes(), files_[file.name]);
    ASSERT_OK_AND_ASSIGN(const LoadedFile loaded, checkpoint.Load(file.name));
    EXPECT_EQ(parts.header(), loaded.header());
  }
  PartsOfAFile parts;
  EXPECT_THAT(checkpoint.LoadTo("../x", parts), IsDamaged(""));
}

TEST_F(CheckpointFolder, EveryChangedByteIsFound) {
  for (const auto& [name, bytes] : files_) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (const char change : {'\x01', '\x80'}) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ change);
        Write(name, changed);
        ASSERT_THAT(Check(), IsDamaged(path())) << name << ", byte " << i;
      }
    }
    Write(name, bytes);
  }
  EXPECT_OK(Check());
}

TEST_F(CheckpointFolder, NamesTheTensorThatWasChanged) {
  const std::string file = "layer-00000.optimizer.safetensors";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       ParseSafetensors(files_[file], static_cast<int64_t>(files_[file].size())));
  for (const SafetensorsEntry& entry : header.tensors) {
    for (int64_t byte : {entry.begin, entry.begin + entry.bytes() - 1}) {
      std::string changed = files_[file];
      ++changed[static_cast<size_t>(byte)];
      Write(file, changed);
      EXPECT_THAT(Check(), IsDamaged(AllOf(HasSubstr(PathOf(file)),
                                           HasSubstr(absl::StrCat("\"", entry.name, "\"")))));
    }
  }
}

TEST_F(CheckpointFolder, EveryTruncationAndAnAddedByteAreFound) {
  for (const auto& [name, bytes] : files_) {
    const bool is_shard = absl::EndsWith(name, ".safetensors");
    const std::string named = PathOf(is_shard ? name : kManifestName);
    for (size_t size = 0; size <= bytes.size(); ++size) {
      Write(name, size < bytes.size() ? bytes.substr(0, size) : bytes + '\n');
      ASSERT_THAT(Check(), IsDamaged(named)) << name << ", " << size << " bytes";
    }
    Write(name, bytes);
  }
}

TEST_F(CheckpointFolder, FilesThatAreNotItsOwnAreFound) {
  const std::map<std::string, std::string> other = FilesIn(paths_[0]);
  for (const auto& [name, bytes] : files_) {
    if (other.at(name) == bytes) continue;
    Write(name, other.at(name));
    EXPECT_THAT(Check(), IsDamaged(path())) << name;
    Write(name, bytes);
  }
  // Two of its own files have changed places.
  Write("layer-00000.safetensors", files_["layer-00002.safetensors"]);
  EXPECT_THAT(Check(), IsDamaged("layer-00000.safetensors"));
}

TEST_F(CheckpointFolder, MissingFilesAreFound) {
  for (const auto& [name, bytes] : files_) {
    std::filesystem::remove(PathOf(name));
    EXPECT_THAT(Check(), IsDamaged(AllOf(HasSubstr(PathOf(name)), HasSubstr("missing"))));
    Write(name, bytes);
  }
}

TEST_F(CheckpointFolder, NothingIsReadThroughALink) {
  for (const auto& [name, bytes] : files_) {
    const std::string real = absl::StrCat(run_, "/real");
    std::filesystem::rename(PathOf(name), real);
    std::filesystem::create_symlink(real, PathOf(name));
    EXPECT_THAT(Check(), IsDamaged(AllOf(HasSubstr(PathOf(name)), HasSubstr("regular file"))));
    std::filesystem::remove(PathOf(name));
    std::filesystem::rename(real, PathOf(name));
  }
  EXPECT_OK(Check());
}

TEST_F(CheckpointFolder, AManifestThatLeadsElsewhereIsRefused) {
  std::ofstream(absl::StrCat(run_, "/outside.safetensors")) << "outside";
  const std::string text = files_[kManifestName];
  for (const std::string& name :
       {std::string("../outside.safetensors"), absl::StrCat(run_, "/outside.safetensors")}) {
    WriteManifest(absl::StrReplaceAll(text, {{"layer-00002.safetensors", name}}));
    EXPECT_THAT(Check(),
                IsRefused(AllOf(HasSubstr("manifest.json"), HasSubstr("$.files[2].name"))));
  }
}

TEST_F(CheckpointFolder, AManifestThatPromisesOtherTensorsIsRefused) {
  const std::string text = files_[kManifestName];
  for (const auto& [what, by, why] : std::vector<std::array<std::string, 3>>{
           {"\"shape\":[3,5]", "\"shape\":[5,3]", "has the shape [3, 5], expected [5, 3]"},
           {"\"name\":\"layer 0: bias\"", "\"name\":\"layer 0: bios\"",
            "no tensor \"layer 0: bios"},
       }) {
    WriteManifest(absl::StrReplaceAll(text, {{what, by}}));
    EXPECT_THAT(Check(), IsDamaged(why));
  }
}

TEST_F(CheckpointFolder, AWrongHashOfATensorIsFoundAndIsNoDifference) {
  ASSERT_OK_AND_ASSIGN(const Checkpoint before, Checkpoint::Open(path()));
  const SavedFile::Tensor& tensor = before.manifest().files[2].tensors[0];
  WriteManifest(absl::StrReplaceAll(files_[kManifestName], {{tensor.hash, std::string(32, '0')}}));
  EXPECT_THAT(Check(), IsDamaged(AllOf(HasSubstr("manifest.json"), HasSubstr(tensor.name))));
  ASSERT_OK_AND_ASSIGN(const Checkpoint after, Checkpoint::Open(path()));
  ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, Compare(before, after));
  EXPECT_TRUE(difference.empty());
}

TEST_F(CheckpointFolder, AFileThatTheManifestDoesNotNameIsNotLoaded) {
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path()));
  EXPECT_THAT(checkpoint.Load("manifest.json"), IsDamaged(""));
  EXPECT_THAT(checkpoint.Load("../x"), IsDamaged(""));
  ASSERT_OK_AND_ASSIGN(const LoadedFile file, checkpoint.Load("layer-00000.safetensors"));
  std::vector<float> space;
  const auto read = [&](const char* name, const Shape& shape) {
    return file.ValuesOf({.name = name, .shape = shape}, space);
  };
  ASSERT_OK_AND_ASSIGN(const absl::Span<const float> values, read("layer 0: weight", {3, 5}));
  EXPECT_THAT(values, SizeIs(15));
  EXPECT_THAT(read("layer 0: weight", {15}), IsDamaged(""));
  EXPECT_THAT(read("layer 0: height", {3, 5}), IsDamaged(""));
}

TEST_F(CheckpointFolder, IsListedByStep) {
  std::filesystem::create_directory(absl::StrCat(run_, "/step-00000010"));
  for (const char* name : {"step-3", "step-000000003", "step--0000003", "steps", ".saving-step"}) {
    std::filesystem::create_directory(absl::StrCat(run_, "/", name));
  }
  std::filesystem::create_directory_symlink(path(), absl::StrCat(run_, "/step-00000011"));
  std::ofstream(absl::StrCat(run_, "/step-00000012")) << "a file";
  ASSERT_OK_AND_ASSIGN(const std::vector<FoundCheckpoint> found, ListCheckpoints(run_));
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].path, paths_[0]);
  EXPECT_EQ(found[1].step, 2);
  EXPECT_EQ(found[2].step, 10);
  EXPECT_EQ(CheckpointName(123456789), "step-123456789");
}

TEST_F(CheckpointFolder, TheNewestThatCanBeOpenedIsTaken) {
  std::vector<absl::Status> passed_over;
  ASSERT_OK_AND_ASSIGN(const Checkpoint newest, OpenNewest(run_, passed_over));
  EXPECT_EQ(newest.path(), path());
  EXPECT_THAT(passed_over, IsEmpty());
  std::filesystem::remove(PathOf("manifest.json"));
  ASSERT_OK_AND_ASSIGN(const Checkpoint older, OpenNewest(run_, passed_over));
  EXPECT_EQ(older.path(), paths_[0]);
  EXPECT_THAT(passed_over, ElementsAre(IsDamaged(path())));
  EXPECT_THAT(OpenNewest(path(), passed_over), IsDamaged("manifest.json: the file is missing"));
  ASSERT_OK_AND_ASSIGN(const Checkpoint named, OpenNewest(paths_[0], passed_over));
  EXPECT_EQ(named.manifest().step, 1);
  EXPECT_THAT(OpenNewest(absl::StrCat(run_, "/nowhere"), passed_over),
              StatusIs(absl::StatusCode::kNotFound, "nowhere"));
}

}  // namespace
}  // namespace stagecoach::engine
