// A process that waits for others of its launch.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/comm/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr absl::string_view kPlaceAndTime =
    " at tcp://localhost:[0-9]+ until [0-9]+-[0-9]+-[0-9]+ [0-9]+:[0-9]+:[0-9]+ .--timeout.\n";

Arguments Train(const std::string& deadline_seconds, const Arguments& more) {
  return Joined({"train", "--data", "synthetic:64x16x4", "--layers", "4", "--width", "16",
                 "--epochs", "1", "--timeout", deadline_seconds},
                more);
}

// Starts one of `ranks` ranks, as torchrun does.
std::unique_ptr<Child> StartRank(int rank, int ranks, int port, const Arguments& arguments) {
  const VariablesOf variables = [&](int /*rank*/) {
    return Variables{{"RANK", absl::StrCat(rank)},
                     {"WORLD_SIZE", absl::StrCat(ranks)},
                     {"MASTER_ADDR", "localhost"},
                     {"MASTER_PORT", absl::StrCat(port)}};
  };
  return std::move(Start(1, variables, Same(arguments)).front());
}

// All wait at the same time.
TEST(Waiting, IsSaidWithWhomAndUntilWhenAndNotForWrongFlags) {
  const engine::FreePort ports[] = {
      engine::FreePort::Take().value(), engine::FreePort::Take().value(),
      engine::FreePort::Take().value(), engine::FreePort::Take().value()};
  const auto zero = StartRank(0, 4, ports[0].number(), Train("4", {}));
  const auto one = StartRank(1, 4, ports[0].number(), Train("4", {}));
  const auto alone = StartRank(1, 2, ports[1].number(), Train("4", {}));
  // The flags are wrong by themselves, and then as those of a launch.
  const auto uneven = StartRank(
      0, 2, ports[2].number(), Train("300", {"--global-batch-size", "10", "--micro-batches", "3"}));
  const auto untraced = StartRank(0, 2, ports[3].number(), Train("300", {"--trace", "trace.json"}));
  const Finished of_zero = zero->Wait();
  EXPECT_EQ(of_zero.exit_status, kStatusTryAgain);
  EXPECT_THAT(
      of_zero.err,
      MatchesRegex(absl::StrCat(
          "stagecoach: rank 0: waits for ranks 2, 3 of 4", kPlaceAndTime,
          "stagecoach train: rank 0: [^\n]*ranks 2, 3 of 4 did not arrive in time[^\n]*\n")));
  // Rank 0 reports it for the others.
  EXPECT_THAT(one->Wait().err, Not(HasSubstr("waits for ranks 2, 3")));
  EXPECT_THAT(alone->Wait().err,
              MatchesRegex(absl::StrCat("stagecoach: rank 1: waits for rank 0 of 2", kPlaceAndTime,
                                        "stagecoach train: rank 1: .*rank 0 does not answer.*\n")));
  const Finished of_uneven = uneven->Wait();
  EXPECT_EQ(of_uneven.exit_status, kStatusBadConfiguration);
  ExpectOneLine(of_uneven.err, HasSubstr("does not divide into 3 equal micro-batches"));
  const Finished of_untraced = untraced->Wait();
  EXPECT_EQ(of_untraced.exit_status, kStatusUsage);
  ExpectOneLine(of_untraced.err, HasSubstr("trace a run of one process"));
}

}  // namespace
}  // namespace stagecoach::tools
