// The command line, with what a program in C++ has trained.
#include "engine/session/session.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::HasSubstr;

TEST(RunOfAProgram, IsPredictedWithReplayedAndResumed) {
  const stagecoach::testing::TestFolder scratch;
  const std::string folder = scratch.path() / "run";
  engine::RunConfig config;
  config.data = "synthetic:200x16x4";
  config.layers = 5;
  config.width = 16;
  config.stages = 2;
  config.schedule = "1f1b";
  config.batch = 40;
  config.steps = 4;
  config.learning_rate_schedule = "constant";
  config.seed = 7;
  config.checkpoints = folder;
  config.every_steps = 2;
  ASSERT_OK(engine::Train(config));

  const Finished predicted = RunStagecoach({"predict", "--checkpoint", folder});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
  EXPECT_THAT(predicted.out, HasSubstr("accuracy"));
  const Finished replayed = RunStagecoach({"replay", folder, "--steps", "2"});
  EXPECT_EQ(replayed.exit_status, 0) << replayed.err;
  const Finished resumed =
      RunStagecoach({"train", "--checkpoint", folder, "--resume", "--steps", "6", "--json"});
  EXPECT_EQ(resumed.exit_status, 0) << resumed.err;

  config.checkpoints = scratch.path() / "longer";
  config.steps = 6;
  ASSERT_OK_AND_ASSIGN(const engine::TrainingOutcome longer, engine::Train(config));
  EXPECT_THAT(resumed.out, HasSubstr(longer.parameters_hash));
}

}  // namespace
}  // namespace stagecoach::tools
