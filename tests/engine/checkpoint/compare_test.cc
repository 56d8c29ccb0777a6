#include "engine/checkpoint/compare.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/shard_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/small_save.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TwoCheckpoints : public ::testing::Test {
 protected:
  std::string Write(const SaveTask& task) const {
    const std::atomic<bool> not_cancelled = false;
    std::filesystem::create_directories(task.folder);
    return BeginAndWrite(WithoutSync(), task, not_cancelled).value();
  }
  std::string Folder(const std::string& name) const { return (folder_.path() / name).string(); }

  const TestFolder folder_;
};

TEST_F(TwoCheckpoints, OfTheSameStateAreEqual) {
  const SmallState state(4);
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(Write(state.Task(Folder("one")))));
  ASSERT_OK_AND_ASSIGN(const Checkpoint two, Checkpoint::Open(Write(state.Task(Folder("two")))));
  ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, Compare(one, two));
  EXPECT_TRUE(difference.empty());
  EXPECT_EQ(difference.compared, 9);
}

TEST_F(TwoCheckpoints, DifferWhereTheirBitsDo) {
  const SmallState state(4);
  SaveTask changed = state.Task(Folder("two"));
  // Two elements of the last state of the first weight (3 x 5) change: [1, 3] and [2, 4]. One is
  // -0.
  for (HostPiece& piece : changed.pieces) {
    if (piece.parameter != ParameterId(0) || piece.state != 1) continue;
    std::vector<float> values(piece.bytes.size() / sizeof(float));
    std::memcpy(values.data(), piece.bytes.data(), piece.bytes.size());
    values[8] = -0.0F;
    values[14] += 1.0F;
    piece.bytes = std::as_bytes(std::span(values));
    ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(Write(state.Task(Folder("one")))));
    ASSERT_OK_AND_ASSIGN(const Checkpoint two, Checkpoint::Open(Write(changed)));
    ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, Compare(one, two));
    EXPECT_FALSE(difference.empty());
    ASSERT_THAT(difference.tensors, SizeIs(1));
    EXPECT_EQ(difference.tensors[0].name, "layer 0: weight.exp_avg_sq");
    EXPECT_EQ(difference.tensors[0].file, "layer-00000.optimizer.safetensors");
    EXPECT_THAT(difference.tensors[0].index, ElementsAre(1, 3));
    EXPECT_EQ(difference.tensors[0].elements, 2);
    EXPECT_EQ(difference.tensors[0].left, 4081.0F);
    EXPECT_EQ(difference.tensors[0].right, 0.0F);
  }
}

TEST_F(TwoCheckpoints, NameTensorsThatOneOfThemHas) {
  const SmallState state(4);
  SaveTask other = state.Task(Folder("two"));
  other.files[0].tensors[0].name = "layer 0: waits";
  SafetensorsHeader header;
  for (const ShardTensor& tensor : other.files[0].tensors) {
    header.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  other.files[0].header = LayOutSafetensors(header);
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    other.files[0].tensors[i].begin = header.tensors[i].begin;
  }
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(Write(state.Task(Folder("one")))));
  ASSERT_OK_AND_ASSIGN(const Checkpoint two, Checkpoint::Open(Write(other)));
  ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, Compare(one, two));
  EXPECT_FALSE(difference.empty());
  EXPECT_THAT(difference.tensors, IsEmpty());
  EXPECT_THAT(difference.only_left, ElementsAre("layer 0: weight"));
  EXPECT_THAT(difference.only_right, ElementsAre("layer 0: waits"));
  EXPECT_EQ(difference.compared, 8);
}

TEST_F(TwoCheckpoints, ExportOfOneHasAllValuesAndNoStates) {
  const SmallState state(4);
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(Write(state.Task(Folder("one")))));
  const std::string path = Folder("parameters.safetensors");
  std::ofstream(path) << "something older, and longer than what comes";
  ASSERT_OK(ExportParameters(one, path));
  const std::string bytes = FilesIn(folder_.path().string())["parameters.safetensors"];
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       ParseSafetensors(bytes, static_cast<int64_t>(bytes.size())));
  LargeBuffer copy = AllocateLargeBuffer(std::ssize(bytes)).value();
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  const LoadedFile exported(path, std::move(copy), header);
  EXPECT_THAT(header.tensors, SizeIs(3));
  const SaveTask task = state.Task("");
  for (const HostPiece& piece : task.pieces) {
    if (piece.state != kTrainedValue) continue;
    const ParameterTable parameters = SmallParameters();
    const ModelParameter& parameter = parameters[piece.parameter];
    ASSERT_OK_AND_ASSIGN(const absl::Span<const std::byte> own,
                         exported.BytesOf({.name = parameter.name, .shape = parameter.shape}));
    EXPECT_EQ(own, piece.bytes);
  }
}

TEST_F(TwoCheckpoints, ExportWritesToWhatALinkOrPipeIs) {
  const SmallState state(4);
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(Write(state.Task(Folder("one")))));
  ASSERT_OK(ExportParameters(one, Folder("file")));
  std::ofstream(Folder("target")) << "old";
  std::filesystem::create_symlink("target", Folder("link"));
  ASSERT_OK(ExportParameters(one, Folder("link")));
  const auto files = FilesIn(folder_.path().string());
  EXPECT_TRUE(std::filesystem::is_symlink(Folder("link")));
  EXPECT_EQ(files.at("target"), files.at("file"));
  // A device must not be replaced, which would destroy it.
  ASSERT_EQ(mkfifo(Folder("pipe").c_str(), 0600), 0);
  const int reader = open(Folder("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_OK(ExportParameters(one, Folder("pipe")));
  EXPECT_TRUE(std::filesystem::is_fifo(Folder("pipe")));
  close(reader);
}

TEST_F(TwoCheckpoints, ExportOfADamagedOneLeavesNothing) {
  const SmallState state(4);
  const std::string path = Write(state.Task(Folder("one")));
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(path));
  std::ofstream(absl::StrCat(path, "/layer-00002.safetensors")) << "damaged";
  const std::string to = absl::StrCat(Folder("one"), "/parameters.safetensors");
  EXPECT_THAT(ExportParameters(one, to), StatusIs(absl::StatusCode::kDataLoss, "layer-00002"));
  EXPECT_THAT(LeftoversIn(Folder("one")), IsEmpty());
}

TEST(ShardFiles, AreKnownByTheirNames) {
  const std::vector<ShardFile> files = ShardFilesOf(SmallParameters(), Optimizer::Sgd()).value();
  ASSERT_THAT(files, SizeIs(4));
  EXPECT_EQ(files[3].name, "layer-00002.optimizer.safetensors");
  EXPECT_EQ(files[3].tensors[0].name, "layer 2: weight.momentum_buffer");
  EXPECT_TRUE(IsOptimizerFile(files[3].name));
  EXPECT_FALSE(IsOptimizerFile(files[2].name));
  EXPECT_EQ(LayerOfFile(files[3].name), 2);
  EXPECT_EQ(LayerOfFile(files[0].name), 0);
  EXPECT_EQ(LayerOfFile("other.safetensors"), -1);
  EXPECT_EQ(LayerOfFile("layer-x.safetensors"), -1);
}

TEST(ShardFiles, RefuseNamesThatCannotBeToldApart) {
  ParameterTable twice;
  const std::vector<ParameterSpec> same = {{.name = "weight", .shape = {2}},
                                           {.name = "weight", .shape = {3}}};
  twice.Add(0, same);
  EXPECT_THAT(ShardFilesOf(twice, Optimizer::AdamW()), IsRefused("two parameters"));
  ParameterTable strange;
  const std::vector<ParameterSpec> bytes = {{.name = "\xFF", .shape = {2}}};
  strange.Add(7, bytes);
  EXPECT_THAT(ShardFilesOf(strange, Optimizer::AdamW()), IsRefused("layer 7 is not UTF-8"));
}

}  // namespace
}  // namespace stagecoach::engine
