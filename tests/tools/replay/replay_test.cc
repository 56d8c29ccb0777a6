// `replay`, as a user sees it.
#include <signal.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/system_calls.h"
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
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
      const auto& own = loaded.values(entry);
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
    task.pieces.push_back(
        {.parameter = engine::ParameterId(static_cast<int>(i)), .values = values[i]});
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
  void Train(const Arguments& more = {}) const {
    const Finished run = RunStagecoach(Joined({"train",
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
                                               run_},
                                              more));
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
  static std::vector<int> StepsOf(const Finished& replayed, const std::string& name) {
    std::vector<int> steps;
    for (const nlohmann::json& event : Of(replayed, name)) steps.push_back(event["step"]);
    return steps;
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

TEST_F(ReplayCommand, GivesTheSameBitsByTheRunsPlanAndOnOneDevice) {
  Train();
  const Finished replayed = Replay({run_});
  ExpectSame(replayed, 3);
  const nlohmann::json start = replayed.Events().front();
  EXPECT_EQ(start["checkpoint"], Step(7));
  EXPECT_EQ(start["plans"][0]["first_layers"].size(), 2);
  EXPECT_EQ(start["plans"][1]["first_layers"].size(), 1);
  EXPECT_THAT(StepsOf(replayed, "step"), ElementsAre(8, 9, 10));
  EXPECT_THAT(StepsOf(replayed, "saved"), ElementsAre(8, 9, 10));
  EXPECT_EQ(Of(replayed, "saved")[0]["compared"], 48);  // values and two states of each
  EXPECT_FALSE(replayed.Events()[4].contains("gradient_norms"));
}

TEST_F(ReplayCommand, GivesTheSameBitsWithReplicasClippingAndAnyPlan) {
  Train({"--replicas", "2", "--gradient-blocks", "4", "--clip-norm", "0.5"});
  const Finished on_one = Replay({Step(3), "--steps", "4"});  // across the end of an epoch
  ExpectSame(on_one, 4);
  const nlohmann::json start = on_one.Events().front();
  EXPECT_EQ(start["plans"][0]["num_devices"], 4);
  EXPECT_EQ(start["plans"][1]["num_devices"], 1);
  for (const nlohmann::json& step : Of(on_one, "step")) {
    EXPECT_GT(step["gradient_norms"][0], 0.0);
    EXPECT_EQ(step["gradient_norms"][0], step["gradient_norms"][1]);
  }
  const Finished on_many = Replay({Step(3), "--stages", "2", "--replicas", "4", "--shard-optimizer",
                                   "--schedule", "zb-h1", "--threads-per-device", "2"});
  ExpectSame(on_many, 3);
  EXPECT_EQ(on_many.Events().front()["plans"][1]["num_devices"], 8);
}

TEST_F(ReplayCommand, TakesAPlanThatNoFlagsOfTheRunTell) {
  const std::string plan = (folder_.path() / "plan.json").string();
  const Finished planned = RunStagecoach({"plan", "--data", "synthetic:200x16x4", "--layers", "5",
                                          "--width", "16", "--global-batch-size", "40", "--stages",
                                          "2", "--schedule", "zb-v", "--save", plan});
  ASSERT_EQ(planned.exit_status, 0) << planned.err;
  const Finished run = RunStagecoach({"train", "--data", "synthetic:200x16x4", "--layers", "5",
                                      "--width", "16", "--plan", plan, "--checkpoint-every", "2",
                                      "--checkpoint", run_, "--optimizer", "sgd"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  fs::remove(plan);
  const Finished replayed = Replay({run_, "--steps", "1"});
  ExpectSame(replayed, 1);
  EXPECT_EQ(replayed.Events().front()["plans"][0]["schedule"], "zb-v");
}

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

TEST_F(ReplayCommand, FindsDamage) {
  Train();
  const auto damage = [&](int step) {
    std::fstream file(Step(step) + "/layer-00001.safetensors", std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x7F');
  };
  damage(7);
  const Finished named = Replay({Step(7)});
  EXPECT_EQ(named.exit_status, kStatusBadData);
  EXPECT_THAT(named.err, AllOf(HasSubstr("step-00000007/layer-00001.safetensors: tensor"),
                               HasSubstr("is not what was saved")));
  // For the run, the checkpoint before will do; but one that was to be compared with is damaged.
  const Finished of_run = Replay({run_});
  EXPECT_EQ(of_run.exit_status, kStatusBadData);
  ExpectOneLine(of_run.err, AllOf(HasSubstr("passes over a checkpoint: "), HasSubstr("00000007")));
  EXPECT_THAT(StepsOf(of_run, "step"), ElementsAre(7, 8, 9));
  EXPECT_TRUE(of_run.Events().back()["same"]);
  EXPECT_THAT(std::string(Of(of_run, "saved").at(0)["not_compared"]),
              HasSubstr("is not what was saved"));
  for (int step = 1; step < 10; ++step) damage(step);
  const Finished none = Replay({run_});
  EXPECT_EQ(none.exit_status, kStatusBadData);
  EXPECT_THAT(none.out, IsEmpty());
}

TEST_F(ReplayCommand, GoesNoFurtherThanTheRun) {
  Train({"--checkpoint-every", "4"});
  const Finished cut = Replay({Step(8), "--steps", "40"});
  EXPECT_EQ(cut.exit_status, 0) << cut.err;
  ExpectOneLine(cut.err, HasSubstr("the run ends after 2 of the 40 steps"));
  EXPECT_THAT(StepsOf(cut, "step"), ElementsAre(9, 10));
  // A run is replayed from where most steps are left.
  EXPECT_THAT(StepsOf(Replay({run_, "--steps", "40"}), "step"), ElementsAre(5, 6, 7, 8, 9, 10));
  const Finished end = Replay({Step(10)});
  EXPECT_EQ(end.exit_status, kStatusBadConfiguration);
  ExpectOneLine(end.err, HasSubstr("no step is left"));
}

TEST_F(ReplayCommand, DoesNotCompareWithARunThatWentOnOtherwise) {
  Train();
  for (const int step : {9, 10}) fs::remove_all(Step(step));
  const Finished longer = RunStagecoach({"train", "--checkpoint", run_, "--resume", "--epochs", "3",
                                         "--checkpoint-every", "1", "--keep-checkpoints", "99"});
  ASSERT_EQ(longer.exit_status, 0) << longer.err;
  const Finished replayed = Replay({Step(7)});
  EXPECT_EQ(replayed.exit_status, 0) << replayed.err;
  const Events saved = Of(replayed, "saved");
  ASSERT_EQ(saved.size(), 3);
  EXPECT_THAT(std::string(saved[0]["not_compared"]), HasSubstr("--epochs was 3 and is 2"));
  EXPECT_TRUE(saved[2]["same"]);  // of step 8
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

TEST_F(ReplayCommand, SaysWhatIsMissing) {
  const Finished none = Replay({run_});
  EXPECT_EQ(none.exit_status, kStatusBadData);
  ExpectOneLine(none.err, HasSubstr("there is no checkpoint in"));
  EXPECT_EQ(Replay({}).exit_status, kStatusUsage);
  EXPECT_EQ(Replay({run_, "--steps", "0"}).exit_status, kStatusUsage);
  Train();
  const Finished stages = Replay({run_, "--stages", "6"});
  EXPECT_EQ(stages.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(stages.out, IsEmpty());
  {
    const ScopedVariable variable("TMPDIR", "/no/such/place");
    const Finished nowhere = Replay({run_});
    EXPECT_EQ(nowhere.exit_status, 74);
    ExpectOneLine(nowhere.err, HasSubstr("/no/such/place"));
  }
  const ScopedVariable rank("STAGECOACH_RANK", "0");
  const ScopedVariable ranks("STAGECOACH_RANKS", "2");
  const Finished launched = Replay({run_});
  EXPECT_EQ(launched.exit_status, kStatusUsage);
  ExpectOneLine(launched.err, AllOf(HasSubstr("by STAGECOACH_RANKS there are 2 processes"),
                                    HasSubstr("launcher")));
}

TEST_F(ReplayCommand, AsksForDataThatHaveMoved) {
  const std::string table = (folder_.path() / "table.csv").string();
  std::ofstream file(table);
  file << "size,weight,kind\n";
  for (int row = 0; row < 200; ++row) {
    file << row % 7 << "," << row % 13 << "," << (row % 5 < 2 ? "ant" : "bee") << "\n";
  }
  file.close();
  Train({"--data", table, "--label", "kind"});
  const std::string moved = (folder_.path() / "moved.csv").string();
  fs::rename(table, moved);
  const Finished gone = Replay({run_});
  EXPECT_EQ(gone.exit_status, kStatusBadData);
  ExpectOneLine(gone.err, AllOf(HasSubstr(table), HasSubstr("say with --data where they are")));
  ExpectSame(Replay({run_, "--data", moved, "--steps", "2"}), 2);
  std::ofstream(moved, std::ios::app) << "1,1000,ant\n";
  const Finished other = Replay({run_, "--data", moved, "--steps", "2"});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err, HasSubstr(moved + " is not what it was when step-"));
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
