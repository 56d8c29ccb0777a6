// The network of 97.5 million parameters, for one step or none.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Finished OneStep(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",
                                        "--data",
                                        "synthetic:64x784x10",
                                        "--global-batch-size",
                                        "64",
                                        "--micro-batches",
                                        "4",
                                        "--epochs",
                                        "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

TEST(DefaultNetwork, GivesTheSameAnswerOnOneStageAndOnFour) {
  const Finished one = OneStep({"--json", "--stages", "1"});
  const Finished four = OneStep({"--json", "--stages", "4"});
  ASSERT_EQ(one.exit_status, 0) << one.err;
  ASSERT_EQ(four.exit_status, 0) << four.err;
  const nlohmann::json one_end = one.Events().back();
  const nlohmann::json four_end = four.Events().back();
  EXPECT_EQ(one_end["step_losses_hash"], four_end["step_losses_hash"]);
  EXPECT_EQ(one_end["parameters_hash"], four_end["parameters_hash"]);
}

TEST(DefaultNetwork, DoesNotFitOneSmallDeviceAndSaysHowManyItNeeds) {
  const Finished one = OneStep({"--stages", "1", "--device-memory", "600MB"});
  EXPECT_EQ(one.exit_status, 78);
  EXPECT_THAT(one.out, IsEmpty());
  EXPECT_THAT(one.err, AllOf(HasSubstr("does not fit: stage 0 (layers 0-19) needs 1.6 GB"),
                             HasSubstr("device memory is 600.0 MB"),
                             HasSubstr("the smallest number of stages that fits is 3")));
}

TEST(DefaultNetwork, FitsFourSmallDevices) {
  const Finished four = OneStep({"--json", "--stages", "4", "--device-memory", "600MB"});
  ASSERT_EQ(four.exit_status, 0) << four.err;
  const nlohmann::json end = four.Events().back();
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_LE(device["measured_peak_bytes"], 600'000'000);
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
}

}  // namespace
}  // namespace stagecoach::tools
