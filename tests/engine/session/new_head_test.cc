#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/parameter_reader.h"
#include "engine/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

// Trains on samples with as many classes, in a folder of its own.
RunConfig RunOf(int classes, const std::string& folder) {
  RunConfig config;
  config.data = absl::StrCat("synthetic:200x16x", classes);
  config.stages = 1;
  config.schedule = "1f1b";
  config.batch = 40;
  config.steps = 2;
  config.checkpoints = folder;
  return config;
}

// Starts from a run with 4 classes, at a learning rate that changes nothing.
RunConfig WithNewHead(const std::string& initial, const std::string& folder) {
  RunConfig config = RunOf(3, folder);
  config.initial_parameters = initial;
  config.draws_head = true;
  config.learning_rate = 1e-30F;
  return config;
}

Checkpoint NewestOf(const std::string& folder) {
  std::vector<absl::Status> passed_over;
  return OpenNewest(folder, passed_over).value();
}

TEST(NewHead, IsDrawnAndEverythingElseIsTaken) {
  const TestFolder scratch;
  const std::string first = scratch.path() / "first", second = scratch.path() / "second";
  ASSERT_OK(Train(RunOf(4, first)));
  ASSERT_OK(Train(WithNewHead(first, second)));
  const Checkpoint was = NewestOf(first), is = NewestOf(second);
  ParameterReader read_was(was), read_is(is);
  for (const std::string name : {"layer 0: weight", "layer 1: 0.gamma", "layer 2: 1.weight"}) {
    ASSERT_OK_AND_ASSIGN(const auto values, read_was.Read(name));
    const std::vector<float> expected(values.begin(), values.end());
    ASSERT_OK_AND_ASSIGN(const auto actual, read_is.Read(name));
    EXPECT_EQ(std::vector<float>(actual.begin(), actual.end()), expected) << name;
  }
  ASSERT_OK_AND_ASSIGN(const auto head, read_is.Read("layer 3: weight"));
  EXPECT_EQ(head.size(), 3 * 128);
  EXPECT_NE(head[0], 0.0F);
}

TEST(NewHead, HasTheSameBitsForEveryPartition) {
  const TestFolder scratch;
  const std::string first = scratch.path() / "first";
  ASSERT_OK(Train(RunOf(4, first)));
  RunConfig config = WithNewHead(first, scratch.path() / "one");
  config.learning_rate = 1e-2F;
  config.gradient_blocks = 2;
  ASSERT_OK_AND_ASSIGN(const TrainingOutcome expected, Train(config));
  config.checkpoints = scratch.path() / "two";
  config.stages = 2;
  config.replicas = 2;
  config.shards_optimizer = true;
  ASSERT_OK_AND_ASSIGN(const TrainingOutcome actual, Train(config));
  EXPECT_EQ(actual.parameters_hash, expected.parameters_hash);
}

TEST(NewHead, IsNamedWhereTheOldOneDoesNotFit) {
  const TestFolder scratch;
  const std::string first = scratch.path() / "first";
  ASSERT_OK(Train(RunOf(4, first)));
  RunConfig config = WithNewHead(first, scratch.path() / "second");
  config.draws_head = false;
  EXPECT_THAT(Train(config), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("--new-head draws another")));
}

}  // namespace
}  // namespace stagecoach::engine
