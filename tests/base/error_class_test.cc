#include "base/error_class.h"

#include "base/status_macros.h"
#include "base/text/line.h"
#include "gtest/gtest.h"

namespace stagecoach::base {
namespace {

TEST(ErrorClass, TheFirstThatIsSetCounts) {
  const absl::Status error = DataError("no", absl::StatusCode::kNotFound);
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ClassOf(WithClass(ErrorClass::kUsage, error)), ErrorClass::kData);
  EXPECT_EQ(ClassOf(UsageError("no")), ErrorClass::kUsage);
}

TEST(ErrorClass, StaysWhereTheMessageChanges) {
  EXPECT_EQ(ClassOf(Annotate(UsageError("no"), "--flag")), ErrorClass::kUsage);
  EXPECT_EQ(ClassOf(InFile(absl::InvalidArgumentError("3: no"), "a.csv")), ErrorClass::kData);
}

TEST(ErrorClass, OkHasNone) {
  EXPECT_TRUE(WithClass(ErrorClass::kData, absl::OkStatus()).ok());
  EXPECT_EQ(WithClass(ErrorClass::kData, absl::StatusOr<int>(3)).value(), 3);
}

TEST(ErrorClass, FollowsTheCodeWhereNoneIsSet) {
  EXPECT_EQ(ClassOf(absl::DataLossError("")), ErrorClass::kData);
  EXPECT_EQ(ClassOf(absl::InternalError("")), ErrorClass::kInternal);
  EXPECT_EQ(ClassOf(absl::UnknownError("")), ErrorClass::kInternal);
  EXPECT_EQ(ClassOf(absl::ResourceExhaustedError("")), ErrorClass::kConfiguration);
  EXPECT_EQ(ClassOf(absl::InvalidArgumentError("")), ErrorClass::kConfiguration);
}

TEST(ErrorClass, OfDevicesAndDeadlinesIsThatOfTheCode) {
  EXPECT_EQ(ClassOf(WithClass(ErrorClass::kConfiguration, absl::UnavailableError(""))),
            ErrorClass::kUnavailable);
  EXPECT_EQ(ClassOf(WithClass(ErrorClass::kData, absl::DeadlineExceededError(""))),
            ErrorClass::kTryAgain);
  EXPECT_EQ(ClassOf(WithClass(ErrorClass::kData, absl::AbortedError(""))), ErrorClass::kTryAgain);
  EXPECT_EQ(ClassOf(WithClass(ErrorClass::kOutput, absl::UnavailableError(""))),
            ErrorClass::kOutput);
}

}  // namespace
}  // namespace stagecoach::base
