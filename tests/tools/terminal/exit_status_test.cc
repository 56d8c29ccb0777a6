#include "tools/stagecoach/terminal/exit_status.h"

#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error_class.h"
#include "engine/comm/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/stagecoach/program.h"

namespace stagecoach::tools {
namespace {

TEST(ExitStatus, FollowsTheClass) {
  using base::ErrorClass;
  const std::vector<std::pair<ErrorClass, int>> statuses = {
      {ErrorClass::kUsage, 2},    {ErrorClass::kData, 65},        {ErrorClass::kConfiguration, 78},
      {ErrorClass::kOutput, 74},  {ErrorClass::kUnavailable, 69}, {ErrorClass::kTryAgain, 75},
      {ErrorClass::kInternal, 70}};
  for (const auto& [error_class, expected] : statuses) {
    EXPECT_EQ(ExitStatusOf(base::WithClass(error_class, absl::InvalidArgumentError("no"))),
              expected);
  }
  EXPECT_EQ(ExitStatusOf(absl::OkStatus()), 0);
}

TEST(ExitStatus, OfAnotherRanksErrorIsToTryAgain) {
  const absl::Status gone = absl::UnavailableError("gone");
  EXPECT_EQ(ExitStatusOf(gone), 69);
  EXPECT_EQ(ExitStatusOf(engine::OfAnotherRank(gone)), 75);
  EXPECT_EQ(ExitStatusOf(engine::OfAnotherRank(base::DataError("no"))), 75);
  EXPECT_EQ(ExitStatusOf(engine::OfAnotherRank(base::WithClass(base::ErrorClass::kOutput, gone))),
            74);
}

// Throws as every thread except the first does.
template <typename Exception>
void ThrowInThread(const Exception& exception) {
  EndInOneLineWithoutMeans();
  std::thread([exception] { throw exception; }).join();
}

TEST(ExitStatusDeathTest, OfAThreadWithoutMeansIsThatOfTheirLimits) {
  using ::testing::ExitedWithCode;
  using ::testing::MatchesRegex;
  EXPECT_EXIT(ThrowInThread(std::bad_alloc()), ExitedWithCode(78),
              MatchesRegex("stagecoach: the system refused memory; see [^\n]*\n"));
  const auto refused = std::make_error_code(std::errc::resource_unavailable_try_again);
  EXPECT_EXIT(ThrowInThread(std::system_error(refused)), ExitedWithCode(78),
              MatchesRegex("stagecoach: the system refused a thread [^\n]*\n"));
  EXPECT_EXIT(ThrowInThread(7), ::testing::KilledBySignal(SIGABRT), "terminate called");
}

}  // namespace
}  // namespace stagecoach::tools
