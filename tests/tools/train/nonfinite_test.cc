// Runs that reach NaN or infinity: plain gradient descent at an absurd learning rate, after a few
// steps.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> Diverging(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",
                                        "--data",
                                        "synthetic:256x16x4",
                                        "--layers",
                                        "4",
                                        "--width",
                                        "16",
                                        "--global-batch-size",
                                        "64",
                                        "--epochs",
                                        "2",
                                        "--micro-batches",
                                        "8",
                                        "--optimizer",
                                        "sgd",
                                        "--momentum",
                                        "0",
                                        "--learning-rate",
                                        "1000",
                                        "--lr-schedule",
                                        "constant",
                                        "--gradient-blocks",
                                        "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(NonFinite, StepsAreSkippedAlikeWhateverTheDevices) {
  const Finished one =
      RunStagecoach(Diverging({"--on-nonfinite", "skip", "--stages", "1", "--json"}));
  ASSERT_EQ(one.exit_status, 0) << one.err;
  const nlohmann::json expected = one.Events().back();
  EXPECT_GT(expected["skipped_steps"], 0);
  EXPECT_LT(expected["skipped_steps"], expected["steps"]);
  const std::vector<std::vector<std::string>> others = {{"--stages", "4"},
                                                        {"--stages", "2", "--schedule", "zb-v"},
                                                        {"--stages", "2", "--replicas", "2"}};
  for (std::vector<std::string> arguments : others) {
    arguments.insert(arguments.end(), {"--on-nonfinite", "skip", "--json"});
    const Finished run = RunStagecoach(Diverging(arguments));
    ASSERT_EQ(run.exit_status, 0) << run.err;
    for (const char* name : {"steps", "skipped_steps", "step_losses_hash", "parameters_hash"}) {
      EXPECT_EQ(run.Events().back()[name], expected[name]) << name;
    }
  }
  std::vector<std::string> launched = {"launch", "--processes", "4", "--"};
  const std::vector<std::string> train =
      Diverging({"--stages", "2", "--replicas", "2", "--on-nonfinite", "skip", "--json"});
  launched.insert(launched.end(), train.begin(), train.end());
  const Finished run = RunStagecoach(launched);
  ASSERT_EQ(run.exit_status, 0) << run.err;
  for (const char* name : {"steps", "skipped_steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(run.Events().back()[name], expected[name]) << name;
  }
  const std::string reason = one.Events()[1]["reason"];
  EXPECT_THAT(reason, HasSubstr("for micro-batch 0 is not finite"));
  EXPECT_EQ(run.Events()[1]["reason"], reason);
}

TEST(NonFinite, IsToldInTheReportForPeople) {
  const Finished run = RunStagecoach(Diverging({"--on-nonfinite", "skip"}));
  EXPECT_THAT(run.out, AllOf(HasSubstr("skipped step 4 of epoch 1: the output of layer "),
                             HasSubstr("steps with numbers that are not finite")));
}

TEST(NonFinite, StopsTheRun) {
  const Finished checked = RunStagecoach(Diverging({"--on-nonfinite", "stop"}));
  EXPECT_EQ(checked.exit_status, 65);
  EXPECT_THAT(checked.err, AllOf(StartsWith("stagecoach train: step 4: the output of layer "),
                                 EndsWith("; try a lower --learning-rate\n")));
  // The loss alone shows it, without a flag.
  const Finished plain = RunStagecoach(Diverging({}));
  EXPECT_EQ(plain.exit_status, 65);
  EXPECT_THAT(plain.err, AllOf(StartsWith("stagecoach train: step 4: the loss of micro-batch 0"),
                               HasSubstr("--on-nonfinite stop or skip")));
}

}  // namespace
}  // namespace stagecoach::tools
