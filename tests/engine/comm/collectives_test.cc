#include "engine/comm/collectives.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/in_process_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::Float32;
using kernels::Shape;
using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;

TEST(Collectives, AllGatherIsInTheOrderOfRanks) {
  Transports ranks = Connect(3);
  std::vector<std::vector<double>> gathered(3, std::vector<double>(6));
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) {
    const double rank = own.rank().value();
    const std::vector<double> mine = {10.0 * rank, 10.0 * rank + 1.0};
    return Gather(own, mine, gathered[static_cast<size_t>(rank)], Long());
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_THAT(gathered, Each(ElementsAre(0, 1, 10, 11, 20, 21)));
}

TEST(Collectives, AllGatherOfOneRankCopies) {
  Transports ranks = Connect(1);
  const std::vector<double> mine = {1, 2};
  std::vector<double> all(2);
  ASSERT_OK(Gather(*ranks[0], mine, all, Long()));
  EXPECT_EQ(all, mine);
}

TEST(Collectives, AllGatherHasADeadline) {
  Transports ranks = Connect(2);
  const std::vector<double> mine(1);
  std::vector<double> all(2);
  EXPECT_THAT(Gather(*ranks[1], mine, all, Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 timed out waiting"));
}

// A rank that is one round ahead must not overwrite what a slower one still reads.
TEST(Collectives, AllGatherKeepsItsRoundsApart) {
  Transports ranks = Connect(4);
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) -> absl::Status {
    std::vector<double> all(4);
    for (int round = 0; round < 500; ++round) {
      const std::vector<double> mine = {100.0 * round + own.rank().value()};
      RETURN_IF_ERROR(Gather(own, mine, all, Long()));
      for (int rank = 0; rank < 4; ++rank) {
        const double value = all[static_cast<size_t>(rank)];
        if (value == 100.0 * round + rank) continue;
        return absl::InternalError(
            absl::StrCat("round ", round, " has ", value, " of rank ", rank));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Ranks 1 and 3 of four gather while the others do something else.
TEST(Collectives, SomeRanksGatherAmongThemselves) {
  Transports ranks = Connect(4);
  const std::vector<Rank> group = {Rank(1), Rank(3)};
  std::vector<std::vector<float>> all(4, std::vector<float>(2));
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) -> absl::Status {
    const int rank = own.rank().value();
    if (rank % 2 == 0) return absl::OkStatus();
    std::vector<float> mine = {static_cast<float>(rank)};
    std::vector<float>& gathered = all[static_cast<size_t>(rank)];
    return AllGather(own, group, DeviceOf(rank).stream(), Message::Kind::kNorms, View(mine),
                     Float32(gathered.data(), Shape{2, 1}), Long());
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (const size_t rank : {1, 3}) EXPECT_THAT(all[rank], ElementsAre(1, 3));
}

}  // namespace
}  // namespace stagecoach::engine
