#include "engine/transport/collectives.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/transport/in_process_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::Float32;
using kernels::Shape;
using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 timed out waiting")));
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

// Sums whose bits depend on the order: rank r contributes 1e8, 1 and -1e8 in turn for every rank,
// begun with rank r's part shifted by the receiver.
TEST(Collectives, ReduceScatterAddsInTheOrderOfRanks) {
  constexpr int kRanks = 5;
  constexpr int64_t kElements = 3;
  const auto addend = [](int from, int to, int64_t i) {
    constexpr float kValues[] = {1e8F, 1.0F, -1e8F, 3.0F, 0.5F};
    return kValues[(from * 2 + to + i) % 5] * static_cast<float>(1 + from);
  };
  Transports ranks = Connect(kRanks);
  std::vector<std::vector<float>> sums(kRanks, std::vector<float>(kElements));
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) {
    const int rank = own.rank().value();
    std::vector<float> parts, received(kRanks * kElements);
    for (int to = 0; to < kRanks; ++to) {
      for (int64_t i = 0; i < kElements; ++i) parts.push_back(addend(rank, to, i));
    }
    return ReduceScatter(own, AllRanks(kRanks), DeviceOf(rank),
                         Float32(parts.data(), Shape{kRanks, kElements}),
                         Float32(received.data(), Shape{kRanks, kElements}),
                         View(sums[static_cast<size_t>(rank)]), Long());
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  bool order_matters = false;
  for (int to = 0; to < kRanks; ++to) {
    for (int64_t i = 0; i < kElements; ++i) {
      float expected = addend(0, to, i);
      float backwards = addend(kRanks - 1, to, i);
      for (int from = 1; from < kRanks; ++from) {
        expected += addend(from, to, i);
        backwards += addend(kRanks - 1 - from, to, i);
      }
      EXPECT_EQ(sums[static_cast<size_t>(to)][static_cast<size_t>(i)], expected);
      order_matters = order_matters || expected != backwards;
    }
  }
  EXPECT_TRUE(order_matters);
}

// Ranks 1 and 3 of four: the others do something else.
TEST(Collectives, SomeRanksGatherAndAddAmongThemselves) {
  Transports ranks = Connect(4);
  const std::vector<Rank> group = {Rank(1), Rank(3)};
  std::vector<std::vector<float>> all(4, std::vector<float>(2)), sums(4, std::vector<float>(1));
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) -> absl::Status {
    const int rank = own.rank().value();
    if (rank % 2 == 0) return absl::OkStatus();
    std::vector<float> mine = {static_cast<float>(rank)}, received(2);
    std::vector<float>& gathered = all[static_cast<size_t>(rank)];
    RETURN_IF_ERROR(AllGather(own, group, DeviceOf(rank).stream(), View(mine),
                              Float32(gathered.data(), Shape{2, 1}), Long()));
    return ReduceScatter(own, group, DeviceOf(rank), View(gathered), View(received),
                         View(sums[static_cast<size_t>(rank)]), Long());
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (const size_t rank : {1, 3}) EXPECT_THAT(all[rank], ElementsAre(1, 3));
  EXPECT_THAT(sums[1], ElementsAre(2));
  EXPECT_THAT(sums[3], ElementsAre(6));
}

}  // namespace
}  // namespace stagecoach::engine
