// `replay`, where files are altered or it is stopped; cli/replay.cli has the rest.
#include <signal.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/shard_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"
#include "tools/stagecoach/replay/replay_report.h"

namespace stagecoach::tools {
namespace {

namespace fs = std::filesystem;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Events = std::vector<nlohmann::json>;

constexpr int kDiffers = 1;

// Returns the contents of all files below a folder, and when each was changed.
std::map<std::string, std::pair<std::string, fs::file_time_type>> AllOfFolder(
    const std::string& folder) {
  std::map<std::string, std::pair<std::string, fs::file_time_type>> all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    std::string text;
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    all[entry.path().string()] = {text, entry.last_write_time()};
  }
  return all;
}

// Replaces a checkpoint by one that is also valid, but in which the tensor's last value differs.
void Alter(const std::string& path, const std::string& altered_tensor) {
  const engine::Checkpoint checkpoint = engine::Checkpoint::Open(path).value();
  engine::SaveTask task = {
      .folder = path + "-altered", .id = "altered", .manifest = checkpoint.manifest()};
  std::vector<std::vector<float>> values;
  for (const engine::SavedFile& saved : checkpoint.manifest().files) {
    const engine::LoadedFile loaded = checkpoint.Load(saved.name).value();
    engine::ShardFile& file = task.files.emplace_back();
    file.name = saved.name;
    file.layer = engine::LayerOfFile(saved.name);
    for (const engine::SafetensorsEntry& entry : loaded.header().tensors) {
      const engine::ParameterId id(static_cast<int>(values.size()));
      std::vector<float> space;
      const auto own = loaded.ValuesOf({.name = entry.name, .shape = entry.shape}, space).value();
      values.emplace_back(own.begin(), own.end());
      if (entry.name == altered_tensor) values.back().back() += 1.0F;
      file.tensors.push_back(
          {.name = entry.name, .parameter = id, .shape = entry.shape, .begin = entry.begin});
    }
    const std::string whole =
        base::ReadFile(absl::StrCat(path, "/", saved.name), int64_t{1} << 30).value();
    file.header = whole.substr(0, static_cast<size_t>(file.tensors.front().begin));
    task.owners.push_back(0);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    task.pieces.push_back({.parameter = engine::ParameterId(static_cast<int>(i)),
                           .bytes = std::as_bytes(std::span(std::as_const(values[i])))});
  }
  fs::create_directory(task.folder);
  ASSERT_OK(BeginCheckpoint(base::SystemCalls::Kernel(), task));
  const std::atomic<bool> cancelled = false;
  const std::string written = WriteCheckpoint(base::SystemCalls::Kernel(), task, cancelled).value();
  fs::remove_all(path);
  fs::rename(written, path);
  fs::remove_all(task.folder);
}

class ReplayCommand : public ::testing::Test {
 protected:
  // Trains two epochs of five steps on two stages; each step is saved.
  void Train() const {
    const Finished run = RunStagecoach({"train",
                                        "--data",
                                        "synthetic:200x16x4",
                                        "--layers",
                                        "5",
                                        "--width",
                                        "16",
                                        "--global-batch-size",
                                        "40",
                                        "--epochs",
                                        "2",
                                        "--stages",
                                        "2",
                                        "--schedule",
                                        "1f1b",
                                        "--checkpoint-every",
                                        "1",
                                        "--keep-checkpoints",
                                        "99",
                                        "--checkpoint",
                                        run_});
    ASSERT_EQ(run.exit_status, 0) << run.err;
  }
  Finished Replay(const Arguments& arguments) const {
    return RunStagecoach(Joined({"replay", "--json"}, arguments));
  }
  std::string Step(int step) const { return absl::StrCat(run_, "/", engine::CheckpointName(step)); }
  static Events Of(const Finished& replayed, const std::string& name) {
    Events events;
    for (const nlohmann::json& event : replayed.Events()) {
      if (event["event"] == name) events.push_back(event);
    }
    return events;
  }
  static void ExpectSame(const Finished& replayed, size_t steps) {
    EXPECT_EQ(replayed.exit_status, 0) << replayed.err;
    EXPECT_EQ(replayed.err, "");
    EXPECT_EQ(Of(replayed, "step").size(), steps);
    for (const char* const name : {"step", "saved", "end"}) {
      for (const nlohmann::json& event : Of(replayed, name)) EXPECT_TRUE(event["same"]) << event;
    }
    const nlohmann::json end = replayed.Events().back();
    EXPECT_EQ(end["steps"], steps);
    EXPECT_EQ(end["parameters_hashes"][0], end["parameters_hashes"][1]);
  }

  const TestFolder folder_;
  const std::string run_ = (folder_.path() / "run").string();
};

TEST_F(ReplayCommand, FindsValuesThatTheStepsDoNotGive) {
  Train();
  const engine::Manifest manifest = engine::Checkpoint::Open(Step(9))->manifest();
  const engine::SavedFile* const file = manifest.FindFile("layer-00002.optimizer.safetensors");
  ASSERT_NE(file, nullptr);
  const std::string altered = file->tensors.back().name;
  Alter(Step(9), altered);
  ASSERT_OK(engine::Checkpoint::Open(Step(9))->Verify());  // nothing is damaged
  const Finished replayed = Replay({Step(7)});
  EXPECT_EQ(replayed.exit_status, kDiffers) << replayed.err;
  const Events saved = Of(replayed, "saved");
  ASSERT_EQ(saved.size(), 3);
  EXPECT_TRUE(saved[0]["same"]);
  EXPECT_FALSE(saved[1]["same"]);
  EXPECT_TRUE(saved[1]["same_losses"]);
  ASSERT_EQ(saved[1]["tensors"].size(), 1);
  EXPECT_EQ(saved[1]["tensors"][0]["name"], altered);
  EXPECT_EQ(saved[1]["tensors"][0]["elements"], 1);
  EXPECT_TRUE(saved[2]["same"]);
  for (const nlohmann::json& step : Of(replayed, "step")) EXPECT_TRUE(step["same"]);
  EXPECT_FALSE(replayed.Events().back()["same"]);
  // After that checkpoint the run took another course.
  const Finished after = Replay({Step(9)});
  EXPECT_EQ(after.exit_status, kDiffers);
  EXPECT_FALSE(Of(after, "saved").at(0)["same"]);

  const Finished text = RunStagecoach({"replay", Step(7)});
  EXPECT_EQ(text.exit_status, kDiffers);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("step-00000008 is the same: the losses, 48 tensors\n"),
                    HasSubstr(absl::StrCat("step-00000009 DIFFERS from what was replayed: "
                                           "1 of 48 tensors differ; the first is \"",
                                           altered, "\"")),
                    HasSubstr("  1 element differs, from ["), HasSubstr("  same\n"),
                    HasSubstr("\nthe bits DIFFER\n")));
}

TEST_F(ReplayCommand, LeavesTheRunAsItIs) {
  Train();
  const auto before = AllOfFolder(run_);
  const std::string scratch = (folder_.path() / "scratch").string();
  fs::create_directory(scratch);
  const ScopedVariable variable("TMPDIR", scratch);
  ExpectSame(Replay({run_}), 3);
  EXPECT_EQ(AllOfFolder(run_), before);
  EXPECT_TRUE(fs::is_empty(scratch));
}

TEST_F(ReplayCommand, StopsAtASignal) {
  const auto interrupt = [](const Arguments& arguments, const std::string& output) {
    Child child(arguments);
    EXPECT_TRUE(child.WaitForOutput(output));
    child.Signal(SIGINT);
    return child.Wait();
  };
  const Finished run = interrupt(
      {"train", "--json", "--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
       "--global-batch-size", "40", "--epochs", "100000", "--stages", "2", "--checkpoint", run_},
      "\"event\":\"epoch\",\"epoch\":2");
  ASSERT_EQ(run.exit_status, kStopped) << run.err;
  const std::string scratch = (folder_.path() / "scratch").string();
  fs::create_directory(scratch);
  const ScopedVariable variable("TMPDIR", scratch);
  const Finished replayed =
      interrupt({"replay", "--json", run_, "--steps", "400000"}, "\"event\":\"replay\"");
  EXPECT_EQ(replayed.exit_status, kStopped);
  ExpectOneLine(replayed.err, HasSubstr("stopped by a signal: not all was compared"));
  EXPECT_TRUE(fs::is_empty(scratch));
  // `| head -1` closes the output this way.
  Child unread({"replay", "--json", run_, "--steps", "1000"});
  EXPECT_TRUE(unread.WaitForOutput("\"event\":\"replay\""));
  unread.CloseOutput();
  const Finished closed = unread.Wait();
  EXPECT_EQ(closed.signal, SIGPIPE);
  EXPECT_EQ(closed.err, "");
  EXPECT_TRUE(fs::is_empty(scratch));
}

TEST(ReplayReport, ShowsAllDigitsOfWhatDiffers) {
  const engine::StepResult result = {.loss = 0.5, .gradient_norm = 2.0};
  const StepComparison same = {.number = 7, .first = result, .second = result};
  StepComparison other = same;
  other.number = 8;
  other.has_norm = true;
  other.second.gradient_norm = std::nextafter(2.0, 3.0);
  EXPECT_TRUE(same.same());
  EXPECT_FALSE(other.same());
  EndComparison end = {.steps = 2, .first_hash = "a", .second_hash = "b", .same = false};
  end.difference = {
      .tensors = {{.name = "layer 0: weight", .file = "f", .index = {2, 1}, .elements = 3}},
      .compared = 4};
  ::testing::internal::CaptureStdout();
  const std::unique_ptr<ReplayReport> report = MakeReplayReport(/*json=*/false);
  report->Step(same);
  report->Step(other);
  report->End(end);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "step 7  loss 0.500000  same\n"
            "step 8  loss 0.500000, gradient norm 2 and 2.0000000000000004  DIFFERS\n"
            "parameters and optimizer after that DIFFER, the second time from the first: 1 of 4 "
            "tensors differ; the first is \"layer 0: weight\" (f):\n"
            "  3 elements differ, from [2, 1] on: 0 and 0\n"
            "the bits DIFFER\n");
}

}  // namespace
}  // namespace stagecoach::tools
