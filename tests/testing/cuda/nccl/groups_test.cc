// Tests how transfers of one group wait for one another.

#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/ir/schedule.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/perform_groups.h"
#include "tests/testing/cuda/nccl/rank.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/nccl_batches.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

TEST(NcclPlaces, SecondTransferToAPeerIsInTheBatchBehind) {
  const std::vector<NcclEnd> group = {{true, 1}, {true, 1}, {false, 1}, {true, 2}};
  EXPECT_THAT(NcclPlaces(group, /*rank=*/0, /*ranks=*/4, /*channels=*/1),
              ElementsAre(NcclPlace{0, 0}, NcclPlace{0, 1}, NcclPlace{0, 0}, NcclPlace{0, 0}));
}

// The send to the next rank is in the same round as the receive from the previous one.
TEST(NcclPlaces, RoundsAreDealtToChannels) {
  const std::vector<NcclEnd> group = {{true, 1}, {false, 3}, {true, 2}, {true, 3}};
  EXPECT_THAT(NcclPlaces(group, /*rank=*/0, /*ranks=*/4, /*channels=*/4),
              ElementsAre(NcclPlace{2, 0}, NcclPlace{2, 0}, NcclPlace{1, 0}, NcclPlace{3, 0}));
  EXPECT_THAT(NcclPlaces(group, /*rank=*/0, /*ranks=*/4, /*channels=*/2),
              ElementsAre(NcclPlace{1, 0}, NcclPlace{1, 0}, NcclPlace{0, 0}, NcclPlace{1, 0}));
}

TEST(NcclPlaces, ABatchHasRoundsOfOneBlock) {
  std::vector<NcclEnd> group;
  std::vector<NcclPlace> expected;
  for (int peer = 1; peer < 20; ++peer) {
    group.push_back({true, peer});
    expected.push_back({0, peer / 8});
  }
  EXPECT_THAT(NcclPlaces(group, /*rank=*/0, /*ranks=*/20, /*channels=*/1),
              ElementsAreArray(expected));
}

class NcclGroups : public Nccl {
 protected:
  void StartAnew(const StandInOptions& options, int ranks) {
    ranks_.clear();
    Reset(options);
    StartConnected(ranks);
  }

  // Returns whether all ranks reach the end of a lowered schedule, whose transfers they perform.
  bool TransfersEnd(const schedule::Schedule& lowered) {
    for (const auto& self : ranks_) {
      const std::vector<schedule::Action>& list = lowered.list_of(schedule::Rank(self->rank));
      for (size_t i = 0; i < list.size(); ++i) {
        if (!schedule::IsTransfer(list[i].op)) continue;
        const size_t end = schedule::EndOfGroup(list, i);
        Launch(static_cast<size_t>(self->rank), [&](Rank& rank) {
          for (; i < end; ++i) Post(rank, list[i], PeerOf(lowered, list[i]).value());
        });
        --i;
      }
    }
    bool all_done = true;
    for (const auto& self : ranks_) all_done &= self->IsDone();
    return all_done;
  }

 private:
  static void Post(Rank& rank, const schedule::Action& action, int peer) {
    constexpr size_t kBytes = 100;
    EXPECT_EQ(IsSend(action.op) ? rank.Send(peer, kBytes) : rank.Receive(peer, kBytes),
              ncclSuccess);
  }
};

constexpr StandInOptions OnChannels(int channels, bool groups_match) {
  return {.delay = 0.3, .nccl_channels = channels, .nccl_groups_match = groups_match};
}

TEST_F(NcclGroups, LargerGroupsOfDualPipeVHang) {
  const schedule::Schedule lowered =
      Lower(schedule::DualPipeV({2, 6}).value(), {.transfers = schedule::Transfers::kGrouped})
          .value();
  for (const int channels : {1, 2, 32}) {
    StartAnew(OnChannels(channels, /*groups_match=*/true), 2);
    EXPECT_TRUE(TransfersEnd(lowered)) << channels;
    StartAnew(OnChannels(channels, /*groups_match=*/false), 2);
    EXPECT_FALSE(TransfersEnd(WithLargestGroups(lowered))) << channels;
  }
}

// If two ranks exchange several messages at once, they must be in one group of both, or the
// stand-in refuses them.
TEST_F(NcclGroups, ThatDifferBetweenTwoRanksAreRefused) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto exchange = [this] {
    StartConnected(2);
    Launch(0, [](Rank& self) {
      EXPECT_EQ(self.Send(1, 100), ncclSuccess);
      EXPECT_EQ(self.Receive(1, 100), ncclSuccess);
    });
    Launch(1, [](Rank& self) { EXPECT_EQ(self.Receive(0, 100), ncclSuccess); });
    Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 100), ncclSuccess); });
    EXPECT_TRUE(rank(0).IsDone());
  };
  EXPECT_DEATH(exchange(), "differ in what the two exchange");
}

// These are the contents of one group of a reduction (engine/runtime/reduction.h): sums of a part
// among all, and of the last part, which is too small for all, addends for rank 0.
TEST_F(NcclGroups, ThatMatchEndThoughASecondMessageIsThereForSomeRanksOnly) {
  constexpr int kRanks = 10;  // NCCL's rounds then form two blocks
  constexpr size_t kBytes = 100;
  for (const int channels : {1, 2, 32}) {
    StandInOptions options = OnChannels(channels, /*groups_match=*/true);
    options.gpus = kRanks;
    StartAnew(options, kRanks);
    for (size_t number = 0; number < kRanks; ++number) {
      Launch(number, [&](Rank& self) {
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == self.rank) continue;
          EXPECT_EQ(self.Receive(peer, kBytes), ncclSuccess);
          EXPECT_EQ(self.Send(peer, kBytes), ncclSuccess);
        }
        for (int peer = 1; peer < kRanks && self.rank == 0; ++peer) {
          EXPECT_EQ(self.Receive(peer, kBytes, kBytes), ncclSuccess);
        }
        if (self.rank == 0) return;
        EXPECT_EQ(self.Send(0, kBytes, kBytes), ncclSuccess);
      });
    }
    for (const auto& self : ranks_) EXPECT_TRUE(self->IsDone()) << channels;
  }
}

// Two communicators share two GPUs. If both GPUs launch in one order, everything ends.
TEST_F(NcclGroups, OfTwoCommunicatorsHangIfTwoGpusLaunchThemInDifferentOrders) {
  for (const bool same_order : {true, false}) {
    StartAnew(OnChannels(/*channels=*/1, /*groups_match=*/true), 2);
    std::vector<ncclComm_t> others(2);
    const ncclUniqueId id = NewId();
    for (size_t i = 0; i < 2; ++i) {
      std::swap(rank(i).communicator, others[i]);
      EXPECT_EQ(rank(i).Init(2, id), ncclInProgress);
    }
    for (const auto& self : ranks_) EXPECT_EQ(self->StateAtLast(), ncclSuccess);
    Connect();
    const auto exchange = [&](size_t number, bool by_other) {
      const int peer = 1 - static_cast<int>(number);
      if (by_other) std::swap(rank(number).communicator, others[number]);
      if (by_other) std::swap(rank(number).stream, rank(number).other_stream);
      Launch(number, [&](Rank& self) {
        EXPECT_EQ(self.Send(peer, 100), ncclSuccess);
        EXPECT_EQ(self.Receive(peer, 100), ncclSuccess);
      });
      if (by_other) std::swap(rank(number).communicator, others[number]);
      if (by_other) std::swap(rank(number).stream, rank(number).other_stream);
    };
    exchange(0, false);
    exchange(0, true);
    exchange(1, !same_order);
    exchange(1, same_order);
    for (const auto& self : ranks_) {
      EXPECT_EQ(self->IsDone(), same_order);
      EXPECT_EQ(self->IsDone(self->other_stream), same_order);
    }
    for (const ncclComm_t other : others) EXPECT_EQ(ncclCommAbort(other), ncclSuccess);
  }
}

// Rank 0 has the message of rank 2 in the batch after that of rank 1, which has not come. On two
// channels, neither waits for the other.
TEST_F(NcclGroups, ABatchWaitsForTheOneBeforeOnItsChannel) {
  for (const int channels : {1, 2}) {
    StartAnew(OnChannels(channels, /*groups_match=*/false), 3);
    Launch(0, [](Rank& self) {
      EXPECT_EQ(self.Receive(1, 100), ncclSuccess);
      EXPECT_EQ(self.Receive(1, 100), ncclSuccess);
      EXPECT_EQ(self.Receive(2, 100), ncclSuccess);
    });
    Launch(2, [](Rank& self) { EXPECT_EQ(self.Send(0, 100), ncclSuccess); });
    EXPECT_TRUE(rank(2).IsDone());
    Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 100), ncclSuccess); });
    EXPECT_TRUE(rank(1).IsDone());
    EXPECT_FALSE(rank(0).IsDone());
    Launch(1, [](Rank& self) { EXPECT_EQ(self.Send(0, 100), ncclSuccess); });
    EXPECT_TRUE(rank(0).IsDone());
  }
}

}  // namespace
}  // namespace stagecoach::testing::cuda
