// Two replicas as a beginner sees them: the shapes of a step, and five epochs that improve.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Arguments TwoReplicas(const std::string& data, const Arguments& more = {}) {
  return Joined(
      {"train",    "--data",          data, "--layers",        "2",    "--width",
       "64",       "--stages",        "1",  "--replicas",      "2",    "--global-batch-size",
       "100",      "--micro-batches", "2",  "--learning-rate", "2e-3", "--lr-schedule",
       "constant", "--epochs",        "5"},
      more);
}

class BeginnersData : public ::testing::TestWithParam<const char*> {};

TEST_P(BeginnersData, IsLearnedInFiveEpochs) {
  const Finished run = RunStagecoach(TwoReplicas(GetParam(), {"--json"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const std::vector<nlohmann::json> events = run.Events();
  ASSERT_EQ(events.size(), 7U);
  for (size_t epoch = 2; epoch <= 5; ++epoch) {
    EXPECT_LT(events[epoch]["loss"], events[epoch - 1]["loss"]) << "epoch " << epoch;
    EXPECT_GT(events[epoch]["train_accuracy"], events[epoch - 1]["train_accuracy"])
        << "epoch " << epoch;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BeginnersData,
                         ::testing::Values("synthetic:1000x10x2", "synthetic:10000x20x10"));

TEST(Explain, ShowsTheShapesOfEachStep) {
  const Finished run = RunStagecoach(
      TwoReplicas("synthetic:1000x10x2", {"--explain", "--micro-batches", "4", "--stages", "2"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(
      run.OutLines(),
      AllOf(Contains("batch 100 x 10 -> 2 replicas x 50 x 10 -> 2 micro-batches x 25 x 10"
                     " -> 2 stages -> 25 x 2 -> gather 100 x 2"),
            Contains(AllOf(StartsWith("stage 0"), HasSubstr("25 x 10 -> 25 x 64"),
                           HasSubstr("layer 0: linear 10 -> 64"))),
            Contains(AllOf(StartsWith("stage 1"), HasSubstr("25 x 64 -> 25 x 2"))),
            Contains(AllOf(StartsWith("average"), HasSubstr("4 micro-batches"),
                           HasSubstr("2 gradient blocks"))),
            Contains(AllOf(StartsWith("gather"), HasSubstr("2 replicas x 50 x 2 -> 100 x 2")))));
}

TEST(Explain, OfOneReplicaHasNothingToScatter) {
  const Finished run =
      RunStagecoach(TwoReplicas("synthetic:1000x10x2", {"--explain", "--replicas", "1"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.OutLines(), Contains("batch 100 x 10 -> 2 micro-batches x 50 x 10 -> 1 stage -> "
                                       "50 x 2 -> gather 100 x 2"));
  EXPECT_THAT(run.out, AllOf(Not(HasSubstr("scatter")), Not(HasSubstr("average"))));
}

TEST(Explain, IsOneMoreEventInJson) {
  const Arguments json = {"--json", "--epochs", "1"};
  const Finished plain = RunStagecoach(TwoReplicas("synthetic:1000x10x2", json));
  const Finished run =
      RunStagecoach(TwoReplicas("synthetic:1000x10x2", Joined(json, {"--explain"})));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const std::vector<nlohmann::json> events = run.Events();
  ASSERT_EQ(events.size(), plain.Events().size() + 1);
  EXPECT_EQ(events[0], plain.Events()[0]);
  EXPECT_EQ(events[1]["event"], "shapes");
  EXPECT_THAT(events[1]["summary"].get<std::string>(), HasSubstr("2 replicas x 50 x 10"));
  EXPECT_EQ(events[1]["rows"][1]["shapes"], "2 replicas x 50 x 10");
  EXPECT_EQ(events.back()["parameters_hash"], plain.Events().back()["parameters_hash"]);
}

}  // namespace
}  // namespace stagecoach::tools
