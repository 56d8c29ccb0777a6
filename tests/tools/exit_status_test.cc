#include "tools/cli/exit_status.h"

#include "base/status_macros.h"
#include "engine/launch/rendezvous.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

const absl::Status kError = absl::InvalidArgumentError("no");

TEST(ExitStatus, FollowsTheOrigin) {
  EXPECT_EQ(ExitStatusOf(From(Origin::kUsage, kError)), 2);
  EXPECT_EQ(ExitStatusOf(From(Origin::kData, kError)), 65);
  EXPECT_EQ(ExitStatusOf(From(Origin::kConfiguration, kError)), 78);
  EXPECT_EQ(ExitStatusOf(From(Origin::kRun, kError)), 70);
}

TEST(ExitStatus, ADamagedFileIsBadDataWhereverItIsRead) {
  EXPECT_EQ(ExitStatusOf(From(Origin::kConfiguration, absl::DataLossError("cut short"))), 65);
}

TEST(ExitStatus, UnmarkedErrorsAreInternal) { EXPECT_EQ(ExitStatusOf(kError), 70); }

TEST(ExitStatus, OkStaysOk) {
  EXPECT_TRUE(From(Origin::kData, absl::OkStatus()).ok());
  EXPECT_EQ(ExitStatusOf(absl::OkStatus()), 0);
}

TEST(ExitStatus, TheFirstMarkCounts) {
  EXPECT_EQ(ExitStatusOf(From(Origin::kConfiguration, From(Origin::kData, kError))), 65);
}

TEST(ExitStatus, TellsOthersFailuresFromAMissingDevice) {
  const absl::Status gone = absl::UnavailableError("gone");
  EXPECT_EQ(ExitStatusOf(From(Origin::kConfiguration, gone)), 69);
  EXPECT_EQ(ExitStatusOf(From(Origin::kConfiguration, engine::OfAnotherRank(gone))), 75);
  EXPECT_EQ(ExitStatusOf(engine::OfAnotherRank(kError)), 75);
  EXPECT_EQ(ExitStatusOf(absl::DeadlineExceededError("late")), 75);
  EXPECT_EQ(ExitStatusOf(From(Origin::kOutput, gone)), 74);
}

TEST(ExitStatus, SurvivesAnnotation) {
  EXPECT_EQ(ExitStatusOf(base::Annotate(From(Origin::kData, kError), "context")), 65);
}

}  // namespace
}  // namespace stagecoach::tools
