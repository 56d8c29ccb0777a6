#include "engine/runtime/rank_group.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/comm/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;

// A closed connection (Unavailable), and NCCL (Aborted), report first, and the reason becomes known
// a little later.
TEST(RankGroup, LooksForTheReasonWhereAnotherIsGone) {
  for (const absl::StatusCode code : {absl::StatusCode::kUnavailable, absl::StatusCode::kAborted}) {
    const auto work = [&](Rendezvous& own) -> absl::Status {
      const RankGroupOptions options = {
          .ranks = 2, .rendezvous = &own, .deadline = absl::Minutes(1)};
      ASSIGN_OR_RETURN(
          const std::unique_ptr<RankGroup> group,
          RankGroup::Connect(options, EvenPlan(SmallModel(), 2, "1f1b", 4, 4).schedule));
      if (own.rank() == 0) return group->Fail(absl::Status(code, "it is gone"));
      absl::SleepFor(absl::Milliseconds(100));
      return group->Fail(absl::InternalError("no memory"));
    };
    const std::vector<absl::Status> statuses = OnRanks(2, work);
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kAborted,
                         ::testing::Eq("rank 1 has failed: no memory; here: it is gone")));
    EXPECT_TRUE(IsOfAnotherRank(statuses[0]));
    EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInternal, ::testing::Eq("no memory")));
  }
}

}  // namespace
}  // namespace stagecoach::engine
