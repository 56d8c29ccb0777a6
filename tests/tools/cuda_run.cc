#include "tests/tools/cuda_run.h"

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {

using ::testing::AllOf;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::StartsWith;

Arguments SmallRun(const Arguments& more) {
  return Joined({"train", "--data", "synthetic:256x16x4", "--layers", "3", "--width", "16",
                 "--global-batch-size", "32", "--epochs", "1", "--stages", "2"},
                more);
}

std::vector<nlohmann::json> EventsOf(const Arguments& more) {
  const Finished run = RunStagecoach(SmallRun(Joined(more, {"--json"})));
  STAGECOACH_CHECK(run.exit_status == 0, run.err);
  EXPECT_THAT(run.err, IsEmpty());
  return run.Events();
}

void ExpectFailure(const Arguments& more, int exit_status, const Matcher<std::string>& line) {
  const Finished run = RunStagecoach(SmallRun(more));
  EXPECT_EQ(run.exit_status, exit_status);
  EXPECT_THAT(run.out, IsEmpty());
  ExpectOneLine(run.err, AllOf(StartsWith("stagecoach train: "), line));
}

}  // namespace stagecoach::tools
