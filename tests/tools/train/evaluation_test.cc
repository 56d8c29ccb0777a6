// `train --eval-every` with checkpoints; cli/evaluation.cli has the rest.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the arguments of a run with epochs of five steps, and 40 test rows.
Arguments Evaluated(const Arguments& more) {
  return Joined({"train", "--json", "--data", "synthetic:200x16x4", "--layers", "5", "--width",
                 "16", "--global-batch-size", "40", "--gradient-blocks", "2"},
                more);
}

// Returns each evaluation as "3: 1.25", with all digits of the loss.
std::vector<std::string> Evaluations(const Finished& run) {
  EXPECT_EQ(run.exit_status, 0) << run.err;
  std::vector<std::string> evaluations;
  for (const nlohmann::json& event : run.Events()) {
    if (event["event"] != "evaluation" && event["event"] != "epoch") continue;
    evaluations.push_back(absl::StrCat(event["step"].get<int>(), ": ", event["test_loss"].dump()));
  }
  return evaluations;
}

std::vector<std::string> Hashes(const Finished& run) {
  const nlohmann::json end = run.Events().back();
  return {end["step_losses_hash"], end["parameters_hash"]};
}

TEST(EvaluatedRun, GoesOnInStepAndKeepsTheBestCheckpoint) {
  const TestFolder folder;
  const std::string saved = (folder.path() / "run").string();
  // The learning rate is one at which the loss soon gets worse.
  const Arguments options = {"--steps",         "12", "--eval-every",  "3",
                             "--eval-rows",     "30", "--optimizer",   "sgd",
                             "--learning-rate", "1",  "--lr-schedule", "constant"};
  const Finished whole = RunStagecoach(Evaluated(options));
  const Arguments save = {"--checkpoint",       saved, "--checkpoint-every", "3",
                          "--keep-checkpoints", "2"};
  const Finished first = RunStagecoach(Evaluated(Joined(options, save)));
  EXPECT_EQ(Evaluations(first), Evaluations(whole));
  // The best of the saved checkpoints is kept, and the newest two, one of which may be the best.
  double least = 1e30;
  int best = 0;
  for (const nlohmann::json& event : first.Events()) {
    if (event["event"] != "evaluation" && event["event"] != "epoch") continue;
    if (event["test_loss"] >= least) continue;
    least = event["test_loss"];
    best = event["step"];
  }
  const auto is_kept = [&](int step) {
    return std::filesystem::exists(absl::StrCat(saved, "/step-", absl::Dec(step, absl::kZeroPad8)));
  };
  EXPECT_LT(best, 10);
  EXPECT_TRUE(is_kept(best)) << best;
  EXPECT_TRUE(is_kept(10));

  std::filesystem::remove_all(saved + "/step-00000012");
  const Finished rest = RunStagecoach(
      {"train", "--json", "--checkpoint", saved, "--resume", "--keep-checkpoints", "9"});
  EXPECT_THAT(rest.err, IsEmpty());
  EXPECT_EQ(Hashes(rest), Hashes(whole));
  EXPECT_THAT(Evaluations(rest), ElementsAre(Evaluations(whole).back()));

  const Finished longer =
      RunStagecoach({"train", "--json", "--checkpoint", saved, "--resume", "--epochs", "3"});
  EXPECT_THAT(longer.err, HasSubstr("--steps was 12, and now --epochs is 3"));
  EXPECT_EQ(longer.Events().back()["steps"], 15);
}

}  // namespace
}  // namespace stagecoach::tools
