#include "engine/comm/vote.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;

constexpr int kVoters = 3;

// Returns the place at which each rank stops if rank `asked` is asked to before its place `place`.
std::vector<int64_t> PlacesOfStops(absl::Duration interval, int asked, int64_t place) {
  std::vector<int64_t> stopped(kVoters, -1);
  const std::vector<absl::Status> statuses =
      OnRanks(kVoters, [&](Rendezvous& rendezvous) -> absl::Status {
        int64_t here = 0;
        Vote vote(&rendezvous,
                  {.wanted = [&] { return rendezvous.rank() == asked && here >= place; },
                   .interval = interval,
                   .deadline = absl::Minutes(1)});
        for (;; ++here) {
          ASSIGN_OR_RETURN(const bool stop, vote.Passes());
          if (stop) break;
        }
        stopped[static_cast<size_t>(rendezvous.rank())] = here;
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return stopped;
}

TEST(Vote, OfAnyRankStopsAllAtTheSamePlace) {
  for (int asked = 0; asked < kVoters; ++asked) {
    const std::vector<int64_t> stopped = PlacesOfStops(absl::Milliseconds(5), asked, 9);
    EXPECT_THAT(stopped, AllOf(Each(stopped.front()), Each(Ge(9)))) << "asked: " << asked;
  }
}

TEST(Vote, BeforeTheFirstPlaceStopsThere) {
  EXPECT_THAT(PlacesOfStops(absl::Hours(1), 1, 0), Each(0));
}

TEST(Vote, IsHeldAtEachPlaceWhereTheyTakeAnInterval) {
  EXPECT_THAT(PlacesOfStops(absl::ZeroDuration(), 2, 7), Each(7));
}

// Each vote comes at most four times as many places later, although an hour has room for many more:
// at places 0, 1, 5 and 21.
TEST(Vote, IsNotPutOffFarAtOnce) { EXPECT_THAT(PlacesOfStops(absl::Hours(1), 0, 6), Each(21)); }

TEST(Vote, OfOneProcessStopsAtOnce) {
  bool asked = false;
  Vote vote(nullptr, {.wanted = [&] { return asked; }});
  for (int place = 0; place < 10; ++place) EXPECT_FALSE(vote.Passes().value());
  asked = true;
  EXPECT_TRUE(vote.Passes().value());
}

TEST(Vote, StaysAsItHasEnded) {
  bool asked = true;
  Vote vote(nullptr, {.wanted = [&] { return asked; }});
  EXPECT_TRUE(vote.Passes().value());
  asked = false;
  EXPECT_TRUE(vote.Passes().value());
}

TEST(Vote, RefusesWhoIsElsewhere) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](Rendezvous& rendezvous) -> absl::Status {
        if (rendezvous.rank() == 1) {
          return rendezvous.AllGather("the end", base::Deadline::After(absl::Minutes(1))).status();
        }
        Vote vote(&rendezvous, {.wanted = [] { return false; }});
        return vote.Passes().status();
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition, "not at the same step"));
}

TEST(Vote, EndsWithTheFailureOfAnother) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](Rendezvous& rendezvous) -> absl::Status {
        if (rendezvous.rank() == 1) {
          rendezvous.Fail(absl::DataLossError("the disk is on fire"),
                          base::Deadline::After(absl::Minutes(1)));
          return absl::OkStatus();
        }
        Vote vote(&rendezvous, {.wanted = [] { return false; }});
        return vote.Passes().status();
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kAborted,
                                    ::testing::Eq("rank 1 has failed: the disk is on fire")));
}

}  // namespace
}  // namespace stagecoach::engine
