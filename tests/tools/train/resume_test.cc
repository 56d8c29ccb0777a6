// `train --checkpoint` and `--resume`, as a user sees them.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Events = std::vector<nlohmann::json>;

class ResumedRun : public ::testing::Test {
 protected:
  // Trains four epochs of five steps.
  Finished Train(const Arguments& more) const {
    return RunStagecoach(Joined({"train", "--json"}, more));
  }
  Arguments Whole(const Arguments& more = {}) const {
    return Joined({"--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
                   "--global-batch-size", "40", "--gradient-blocks", "2", "--epochs", "4"},
                  more);
  }
  static std::vector<nlohmann::json> Of(const Finished& run, const std::string& event) {
    EXPECT_EQ(run.err, "");
    std::vector<nlohmann::json> events;
    for (const nlohmann::json& candidate : run.Events()) {
      if (candidate["event"] == event) events.push_back(candidate);
    }
    return events;
  }
  static std::vector<int> SavedSteps(const Finished& run) {
    std::vector<int> steps;
    for (const nlohmann::json& event : Of(run, "checkpoint")) steps.push_back(event["step"]);
    return steps;
  }
  static std::vector<std::string> Hashes(const Finished& run) {
    const nlohmann::json end = run.Events().back();
    return {end["step_losses_hash"], end["parameters_hash"]};
  }
  static int NewestStep(const std::string& folder) {
    int newest = 0, step = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (absl::SimpleAtoi(name.substr(name.find('-') + 1), &step)) newest = std::max(newest, step);
    }
    return newest;
  }
  // Stops the run at one of its steps; SIGPIPE closes its output, as `| head` does.
  void Interrupt(const Arguments& arguments, int signal, int status) const {
    Child child(Joined({"train", "--json"}, arguments));
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"epoch\",\"epoch\":2"));
    signal == SIGPIPE ? child.CloseOutput() : child.Signal(signal);
    const Finished run = child.Wait();
    EXPECT_EQ(status == 0 ? run.signal : run.exit_status, status == 0 ? signal : status);
  }
  std::string Folder(const std::string& name = "run") const {
    return (folder_.path() / name).string();
  }

  const TestFolder folder_;
};

TEST_F(ResumedRun, SavesBesideTheStepsAndGoesOnElsewhereWithTheSameBits) {
  const Finished whole = Train(Whole());
  const Finished saved = Train(
      Whole({"--checkpoint", Folder(), "--checkpoint-every", "3", "--keep-checkpoints", "2"}));
  EXPECT_EQ(saved.exit_status, 0) << saved.err;
  EXPECT_EQ(Hashes(saved), Hashes(whole));
  EXPECT_THAT(SavedSteps(saved), ElementsAre(3, 5, 6, 9, 10, 12, 15, 18, 20));
  // The run resumes from each remaining checkpoint; the options are those of the checkpoint.
  std::filesystem::remove_all(absl::StrCat(Folder(), "/step-00000020"));
  const Finished resumed =
      Train({"--checkpoint", Folder(), "--resume", "--stages", "2", "--schedule", "zb-v"});
  EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_EQ(Of(resumed, "resumed").at(0)["step"], 18);
  EXPECT_EQ(Of(resumed, "epoch").size(), 1);
  EXPECT_EQ(Hashes(resumed), Hashes(whole));
  EXPECT_EQ(resumed.Events().back()["steps"], 20);
}

TEST_F(ResumedRun, GoesOnAfterASignal) {
  // The run would take hours, so it is stopped within an epoch.
  const Arguments lasting = {
      "--data", "synthetic:200x16x4", "--layers", "5",      "--width", "16", "--global-batch-size",
      "40",     "--lr-schedule",      "constant", "--steps"};
  for (const auto& [signal, status] :
       {std::pair(SIGTERM, kTerminated), std::pair(SIGINT, kStopped), std::pair(SIGHUP, kHungUp),
        std::pair(SIGPIPE, kBrokenPipe), std::pair(SIGKILL, 0)}) {
    const std::string folder = Folder(absl::StrCat(signal));
    // Nothing else triggers a save except a signal, and SIGKILL cannot be caught.
    const Arguments save = {"--checkpoint", folder, "--checkpoint-every",
                            status == 0 ? "1" : "1000000"};
    Interrupt(Joined(Joined(lasting, {"1000000"}), save), signal, status);
    const std::string steps = absl::StrCat(NewestStep(folder) + 3);
    const Finished resumed = Train(Joined(save, {"--resume", "--steps", steps}));
    EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("\"event\":\"resumed\""));
    EXPECT_EQ(Hashes(resumed), Hashes(Train(Joined(lasting, {steps}))));
  }
}

TEST_F(ResumedRun, TrainsForMoreEpochsIfItIsTold) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder()})).exit_status, 0);
  const Finished longer = Train({"--checkpoint", Folder(), "--resume", "--epochs", "6"});
  EXPECT_EQ(longer.exit_status, 0);
  EXPECT_THAT(longer.err, AllOf(HasSubstr("the results will not be those of the run"),
                                HasSubstr("--epochs was 4 and is 6"),
                                HasSubstr("--warmup-steps was 2 and is 3"),
                                Not(HasSubstr("--global-batch-size"))));
  EXPECT_EQ(longer.Events().back()["epochs"], 6);
  EXPECT_EQ(longer.Events().back()["steps"], 30);
}

TEST_F(ResumedRun, KeepsTheWarmUpAndTheMinimumOfTheLearningRate) {
  const Arguments rates = {"--warmup-steps", "7", "--min-lr", "2e-4"};
  const Arguments saved = {"--checkpoint", Folder(), "--checkpoint-every", "3"};
  const Finished whole = Train(Whole(rates));
  ASSERT_EQ(Train(Whole(Joined(rates, saved))).exit_status, 0);
  std::filesystem::remove_all(absl::StrCat(Folder(), "/step-00000020"));
  EXPECT_EQ(Hashes(Train({"--checkpoint", Folder(), "--resume"})), Hashes(whole));
  // Options that are set stay with a longer run; differing ones are reported, or no longer apply.
  std::filesystem::remove_all(absl::StrCat(Folder(), "/step-00000020"));
  const Finished other =
      Train({"--checkpoint", Folder(), "--resume", "--epochs", "5", "--min-lr", "0"});
  EXPECT_THAT(other.err,
              AllOf(HasSubstr("--min-lr was 2e-04 and is 0"), Not(HasSubstr("--warmup-steps"))));
  const Finished constant =
      Train({"--checkpoint", Folder(), "--resume", "--lr-schedule", "constant"});
  EXPECT_EQ(constant.exit_status, kStatusUsage);
  EXPECT_THAT(constant.err, HasSubstr("--warmup-steps is for --lr-schedule warmup-cosine"));
}

TEST_F(ResumedRun, OfAModelFileNeedsTheFileNoMore) {
  const std::string model = engine::WriteTestFile(folder_.path().string(), "model.toml",
                                                  "[[layer]]\ntype = \"linear\"\noutputs = 9\n\n"
                                                  "[[layer]]\ntype = \"linear\"\n"
                                                  "outputs = \"classes\"\n");
  const Arguments run = {
      "--data", "synthetic:200x16x4",  "--model", model, "--stages", "2", "--epochs",
      "2",      "--global-batch-size", "40"};
  const Finished whole = Train(run);
  const Arguments save = {
      "--checkpoint", Folder("saved"), "--keep-checkpoints", "9", "--checkpoint-every", "100"};
  ASSERT_EQ(Train(Joined(run, save)).exit_status, 0);
  std::filesystem::remove(model);
  std::filesystem::remove_all(Folder("saved/step-00000010"));
  const Finished resumed = Train(Joined(save, {"--resume"}));
  EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_EQ(Of(resumed, "resumed").at(0)["step"], 5);
  EXPECT_EQ(Hashes(resumed), Hashes(whole));
}

TEST_F(ResumedRun, PassesOverADamagedCheckpointAndSaysSo) {
  const Finished whole = Train(Whole({"--checkpoint", Folder(), "--checkpoint-every", "100"}));
  for (const char* const file :
       {"/step-00000020/layer-00001.safetensors", "/step-00000015/manifest.json"}) {
    std::ofstream(absl::StrCat(Folder(), file), std::ios::app) << "x";
  }
  const Finished resumed = Train({"--checkpoint", Folder(), "--resume"});
  EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("passes over a checkpoint: "),
                                 HasSubstr("step-00000020/layer-00001.safetensors: it has"),
                                 HasSubstr("step-00000015/manifest.json: ")));
  EXPECT_EQ(Hashes(resumed), Hashes(whole));
}

TEST_F(ResumedRun, EndsWithStatus65IfAllAreDamaged) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder(), "--keep-checkpoints", "1"})).exit_status, 0);
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    std::ofstream(entry.path() / "layer-00000.safetensors") << "x";
  }
  const Finished resumed = Train({"--checkpoint", Folder(), "--resume"});
  EXPECT_EQ(resumed.exit_status, kStatusBadData);
  EXPECT_THAT(resumed.err, HasSubstr("layer-00000.safetensors: it has 1 bytes of"));
}

TEST_F(ResumedRun, StartsAtItsBeginningIfThereIsNothingToResume) {
  const Finished run = Train(Whole({"--checkpoint", Folder(), "--resume"}));
  EXPECT_EQ(run.exit_status, 0);
  ExpectOneLine(run.err, AllOf(HasSubstr("there is no checkpoint in"), HasSubstr("yet")));
  EXPECT_EQ(run.Events().back()["steps"], 20);
}

TEST_F(ResumedRun, DoesNotMixTwoRunsInOneFolder) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder()})).exit_status, 0);
  const Finished second = Train(Whole({"--checkpoint", Folder()}));
  EXPECT_EQ(second.exit_status, kStatusBadConfiguration);
  ExpectOneLine(second.err, AllOf(HasSubstr("has checkpoints of a run"), HasSubstr("--resume")));
}

TEST_F(ResumedRun, KeepsOthersOutOfItsFolderWhileItIsThere) {
  const Arguments run = {
      "--data",  "synthetic:200x16x4", "--steps", "1000000", "--checkpoint-every",
      "1000000", "--checkpoint",       Folder()};
  for (const bool is_first : {true, false}) {  // with and without an existing folder
    Child child(Joined({"train", "--json", "--resume"}, run));
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"plan\""));
    for (const Arguments& other : {Arguments{"--resume"}, Arguments{}}) {
      const Finished second = Train(Joined(run, other));
      EXPECT_EQ(second.exit_status, kStatusBadConfiguration);
      ExpectOneLine(second.err, AllOf(HasSubstr("belongs to a run that is still there (host "),
                                      HasSubstr(absl::StrCat(", process ", child.pid(), ", "))));
    }
    child.Signal(is_first ? SIGKILL : SIGTERM);  // the first leaves its lock behind
    child.Wait();
    EXPECT_EQ(std::filesystem::exists(Folder("run/.lock")), is_first);
  }
}

// A misspelled name does not start a new run.
TEST_F(ResumedRun, OfAFolderWithoutCheckpointsNamesThoseThatHaveSome) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder("runs/one")})).exit_status, 0);
  for (const char* const typo : {"runs/onw", "runs", "rums/one"}) {
    const Finished run = Train({"--checkpoint", Folder(typo), "--resume", "--stages", "2"});
    EXPECT_EQ(run.exit_status, kStatusBadData) << typo;
    ExpectOneLine(run.err,
                  AllOf(HasSubstr(absl::StrCat("there is no checkpoint in ", Folder(typo))),
                        HasSubstr(absl::StrCat("there are some in ", Folder("runs/one"), ";"))));
    EXPECT_EQ(std::filesystem::exists(Folder(typo)), std::string(typo) == "runs");
  }
}

TEST_F(ResumedRun, HasNothingToTrainIfItHasHadMore) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder()})).exit_status, 0);
  ASSERT_EQ(Train({"--checkpoint", Folder(), "--resume", "--epochs", "4"}).exit_status, 0);
  const struct {
    Arguments length;
    const char* message;
  } cases[] = {{{"--epochs", "3"},
                "nothing to train: the run has had 4 epochs; --epochs counts from the start"},
               {{"--steps", "19"},
                "nothing to train: the run has had 20 steps; --steps counts from the start"}};
  for (const auto& [length, message] : cases) {
    const Finished run = Train(Joined({"--checkpoint", Folder(), "--resume"}, length));
    EXPECT_EQ(run.exit_status, kStatusUsage);
    ExpectOneLine(run.err, HasSubstr(message));
  }
}

// Each data set has as many rows as before, so that nothing else would reveal the change.
class DataThatChanged : public ResumedRun, public ::testing::WithParamInterface<int> {
 protected:
  enum Change { kScaledColumn, kOtherLabels, kOtherText };

  std::string Path() const { return Folder(IsText() ? "data.txt" : "data.csv"); }
  bool IsText() const { return GetParam() == kOtherText; }
  void Write(bool changed) const {
    std::ofstream file(Path());
    if (!IsText()) file << "a,b,label\n";
    for (int row = 0; row < 100; ++row) {
      if (IsText()) {
        file << "line " << (changed ? 2 * row : row) % 100 << " of a text\n";
        continue;
      }
      const int scale = changed && GetParam() == kScaledColumn ? 3 : 1;
      const bool is_other = changed && GetParam() == kOtherLabels && row % 5 == 0;
      file << scale * row << ',' << row * row % 17 << ",class" << (row + (is_other ? 1 : 0)) % 2
           << '\n';
    }
  }
  Arguments Start() const {
    const Arguments model =
        IsText() ? Arguments{"--model", "gpt2:blocks=1,width=8,heads=2,context=8,vocabulary=256"}
                 : Arguments{"--layers", "4", "--width", "8"};
    return Joined(
        {"--data", Path(), "--global-batch-size", "8", "--epochs", "1", "--checkpoint", Folder()},
        model);
  }
};

TEST_P(DataThatChanged, AreRefusedByResumeAndReplay) {
  Write(false);
  ASSERT_EQ(
      Train(Joined(Start(), {"--checkpoint-every", "3", "--keep-checkpoints", "99"})).exit_status,
      0);
  EXPECT_EQ(RunStagecoach({"replay", Folder(), "--steps", "1"}).exit_status, 0);
  const Arguments resume = {"--checkpoint", Folder(), "--resume", "--epochs", "2"};
  Write(true);
  const Finished refused = Train(resume);
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(Path() + " is not what it was when step-"),
                                 HasSubstr("--data-changed goes on")));
  const Finished replayed = RunStagecoach({"replay", Folder(), "--steps", "1"});
  EXPECT_EQ(replayed.exit_status, kStatusBadData);
  ExpectOneLine(replayed.err, HasSubstr(Path() + " is not what it was when step-"));
  const Finished known = Train(Joined(resume, {"--data-changed"}));
  EXPECT_EQ(known.exit_status, 0);
  EXPECT_THAT(known.err, AllOf(HasSubstr("the results will not be those of the run"),
                               HasSubstr("is not what it was")));
  // From here on, the new data count as the run's data.
  EXPECT_EQ(Train({"--checkpoint", Folder(), "--resume", "--epochs", "3"}).exit_status, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, DataThatChanged, ::testing::Range(0, 3));

TEST_F(ResumedRun, IsRefusedByAnotherModel) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder()})).exit_status, 0);
  const Finished other = Train({"--checkpoint", Folder(), "--resume", "--width", "17"});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  EXPECT_THAT(other.err, AllOf(HasSubstr("of another model"), HasSubstr("layer 0: weight"),
                               HasSubstr("[16, 16]"), HasSubstr("[16, 17]")));
}

// A hyper-parameter that only the other optimizer has is neither taken from the checkpoint nor
// reported.
TEST_F(ResumedRun, OfAnotherOptimizerIsToldByIt) {
  Train(Whole({"--checkpoint", Folder(), "--epochs", "1", "--beta1", "0.8"}));
  const Finished resumed =
      Train({"--checkpoint", Folder(), "--resume", "--epochs", "2", "--optimizer", "sgd"});
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("was trained with adamw"), Not(HasSubstr("--beta1"))));
}

TEST_F(ResumedRun, NamesTheFlagIfThereAreFewerRows) {
  const std::string table = (folder_.path() / "a.csv").string();
  const auto write = [&](int rows) {
    std::ofstream file(table);
    file << "x,label\n";
    for (int row = 0; row < rows; ++row) file << row << "," << row % 2 << "\n";
  };
  write(100);
  const Finished saved =
      Train({"--data", table, "--layers", "4", "--width", "4", "--global-batch-size", "8",
             "--epochs", "1", "--checkpoint", Folder()});
  EXPECT_EQ(saved.exit_status, 0) << saved.err;
  write(50);
  const Finished resumed = Train({"--checkpoint", Folder(), "--resume", "--epochs", "2"});
  EXPECT_EQ(resumed.exit_status, kStatusBadData);
  ExpectOneLine(resumed.err,
                HasSubstr("a.csv: --train-samples is 80, in the checkpoint, but there are 40 "
                          "rows to train on"));
  const Finished given = Train({"--checkpoint", Folder(), "--resume", "--train-samples", "90"});
  ExpectOneLine(given.err, HasSubstr("a.csv: --train-samples is 90, but there are 40 rows"));
  write(100);
  const Finished larger =
      Train({"--checkpoint", Folder(), "--resume", "--global-batch-size", "96"});
  EXPECT_EQ(larger.exit_status, kStatusBadConfiguration);
  ExpectOneLine(larger.err,
                HasSubstr("80 rows (--train-samples is 80, in the checkpoint), less than one"));
}

TEST_F(ResumedRun, FlagsOfCheckpointsNeedAFolder) {
  for (const Arguments& wrong :
       std::vector<Arguments>{{"--resume"},
                              {"--checkpoint-every", "3"},
                              {"--keep-checkpoints", "3"},
                              {"--checkpoint", ""},
                              {"--checkpoint", "x", "--checkpoint-every", "0"},
                              {"--checkpoint", "x", "--keep-checkpoints", "0"}}) {
    EXPECT_EQ(Train(Whole(wrong)).exit_status, kStatusUsage) << wrong.back();
  }
  const Finished run = Train(Whole({"--checkpoint", "/dev/null/x"}));
  EXPECT_EQ(run.exit_status, kStatusCannotWrite);
  EXPECT_THAT(run.err, HasSubstr("/dev/null/x"));
}

TEST_F(ResumedRun, TellsOfOptionsWhereTheyComeFrom) {
  ASSERT_EQ(Train(Whole({"--checkpoint", Folder()})).exit_status, 0);
  ASSERT_EQ(Train({"--checkpoint", Folder(), "--resume", "--epochs", "5"}).exit_status, 0);
  std::ifstream file(absl::StrCat(Folder(), "/step-00000025/manifest.json"));
  const nlohmann::json options = nlohmann::json::parse(file)["options"];
  const auto option = [](const char* name, const char* value, const char* origin) {
    return nlohmann::json{{"name", name}, {"value", value}, {"origin", origin}};
  };
  EXPECT_THAT(options, Contains(option("--width", "16", "given")));
  EXPECT_THAT(options, Contains(option("--epochs", "5", "given")));
  EXPECT_THAT(options, Contains(option("--micro-batches", "4", "default")));
  EXPECT_THAT(options, Contains(option("--learning-rate", "0.001", "default")));
  for (const nlohmann::json& saved : options) EXPECT_NE(saved["name"], "--checkpoint");
}

// The address space has no room for the stacks of that many threads. Sanitizers take more than any
// limit leaves.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
TEST_F(ResumedRun, OfMoreThreadsThanThereMayBeEndsWithOneLineAndGoesOnWithFewer) {
  const Finished whole = Train(Whole({"--checkpoint", Folder(), "--checkpoint-every", "3"}));
  std::filesystem::remove_all(absl::StrCat(Folder(), "/step-00000020"));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit small = {.rlim_cur = rlim_t{2} << 30, .rlim_max = limit.rlim_max};
  const Arguments resume = {"--checkpoint", Folder(), "--resume"};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  const Finished run = Train(Joined(resume, {"--stages", "3", "--threads-per-device", "256"}));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(run.exit_status, kStatusBadConfiguration) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("the system refused 256 threads: "),
                             HasSubstr("give it fewer (--threads-per-device)")));
  EXPECT_EQ(Hashes(Train(resume)), Hashes(whole));
}
#endif

// Files of the program may grow to 4 KiB; as on a full disk, longer writes fail.
TEST_F(ResumedRun, GoesOnWhereItCannotSaveAndEndsWithStatus74) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Finished run = Train(Whole(
      {"--width", "64", "--checkpoint", Folder(), "--epochs", "2", "--checkpoint-every", "100"}));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(run.exit_status, 74);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("the run goes on, but was not saved after step 5: cannot write"),
                    HasSubstr("not saved after step 10"), HasSubstr("File too large")));
  EXPECT_EQ(run.Events().back()["steps"], 10);
  EXPECT_TRUE(std::filesystem::is_empty(Folder()));
}

TEST_F(ResumedRun, OfATextGoesOnWithinAnEpochByOtherPlans) {
  std::ofstream text(Folder("text.txt"));
  for (int line = 0; line < 100; ++line) text << "line " << line << " of a text\n";
  text.close();
  const Arguments run = {"--data",
                         Folder("text.txt"),
                         "--model",
                         "gpt2:blocks=2,width=8,heads=2,context=8,vocabulary=256",
                         "--global-batch-size",
                         "16",
                         "--epochs",
                         "3",
                         "--gradient-blocks",
                         "2"};
  const Finished whole = Train(run);
  ASSERT_EQ(whole.exit_status, 0) << whole.err;
  const Arguments save = {"--checkpoint", Folder(), "--keep-checkpoints", "99"};
  ASSERT_EQ(
      Train(Joined(Joined(run, save), {"--checkpoint-every", "7", "--stages", "3"})).exit_status,
      0);
  const int steps = whole.Events().back()["steps"];
  ASSERT_GT(steps, 3 * 9);
  // Most of the second epoch is trained elsewhere.
  for (int step = 20; step <= steps; ++step) {
    std::filesystem::remove_all(absl::StrCat(Folder(), "/step-", absl::Dec(step, absl::kZeroPad8)));
  }
  const Finished resumed =
      Train(Joined(save, {"--resume", "--stages", "2", "--replicas", "2", "--schedule", "zb-v"}));
  EXPECT_EQ(Of(resumed, "resumed").at(0)["step"], 14);
  EXPECT_EQ(Hashes(resumed), Hashes(whole));
}

// A run on text is resumed with another model file, which has no parameter that depends on the
// context.
TEST_F(ResumedRun, TakesTheContextOfAnotherModelFile) {
  const auto model = [&](const std::string& name, int context) {
    std::ofstream(Folder(name)) << "context = " << context << R"(
layer = [
  { type = "embedding", vocabulary = "classes", features = 8 },
  { type = "residual", layers = [
      { type = "rms_norm" }, { type = "linear", outputs = 24 },
      { type = "attention", heads = 2, rotary_base = 10000.0 }, { type = "linear", outputs = 8 } ] },
  { type = "linear", outputs = "classes" },
]
)";
    return Folder(name);
  };
  std::ofstream text(Folder("text.txt"));
  for (int line = 0; line < 200; ++line) text << "line " << line << " of a text\n";
  text.close();
  const Arguments saved = {"--checkpoint", Folder(), "--stages", "2"};
  const Finished first = Train(Joined({"--data", Folder("text.txt"), "--model", model("a.toml", 8),
                                       "--global-batch-size", "16", "--epochs", "1"},
                                      saved));
  ASSERT_EQ(first.exit_status, 0) << first.err;
  // 3,590 bytes of text, 9 in 10 of which are for training.
  const Finished same = Train(Joined({"--resume", "--epochs", "2"}, saved));
  ASSERT_EQ(same.exit_status, 0) << same.err;
  EXPECT_EQ(same.Events().back()["steps"], 2 * first.Events().back()["steps"].get<int>());
  const Finished other =
      Train(Joined({"--resume", "--epochs", "3", "--model", model("b.toml", 16)}, saved));
  ASSERT_EQ(other.exit_status, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("--context was 8 and is 16"));
}

}  // namespace
}  // namespace stagecoach::tools
