// Freedom from deadlock: cycles by hand, and the validator's verdict compared with an independent,
// deliberately simple simulation of random schedules.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

MATCHER_P(IsDeadlockOf, ranks, "") {
  return absl::StrContains(arg.message(), absl::StrCat("deadlock of ", ranks, " ranks"));
}

TEST(Deadlock, OfCrossingSendsNamesBothRanksActionsAndPeers) {
  const Schedule crossing =
      FromText({0, 1}, 2,
               {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.0 BW0.0 RECV_B0.1 BW0.1 STEP0",
                "RECV_F1.0 F1.0 BW1.0 SEND_B1.0 RECV_F1.1 F1.1 BW1.1 SEND_B1.1 STEP1"});
  const std::optional<Violation> violation = FindViolation(crossing);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->rank, Rank(0));
  EXPECT_EQ(violation->position, 3);
  EXPECT_EQ(DrawCycle(crossing, violation->cycle),
            "  ┌─▶ rank 0 stands before SEND_F0.1 (position 3) until\n"
            "  │   rank 1 has performed RECV_F1.1 (position 4)\n"
            "  │   rank 1 stands before SEND_B1.0 (position 3) until\n"
            "  └── rank 0 has performed RECV_B0.0 (position 4)\n");
  const absl::Status status = Validate(crossing);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("rank 0, position 3 (stage 0 SEND_F micro-batch 1): deadlock of 2 "
                               "ranks"),
                    HasSubstr(DrawCycle(crossing, violation->cycle))));
}

TEST(Deadlock, OfComputeOrderIsFoundWhateverTheReceives) {
  const Schedule compute = FromText({0, 1}, 2, {"F0.0 BW0.0 F0.1 BW0.1", "F1.0 F1.1 BW1.0 BW1.1"});
  EXPECT_THAT(Validate(Lower(compute).value()), IsDeadlockOf(2));
}

// Stages 0 to 3 wait in a ring of three ranks, stages 4 to 6 in one of two.
TEST(Deadlock, ReportIsTheShortestCycle) {
  const Schedule compute =
      FromText({0, 1, 2, 0, 3, 4, 3}, 1, {"F3.0 F0.0", "F1.0", "F2.0", "F6.0 F4.0", "F5.0"});
  const absl::Status status = Validate(Lower(compute).value());
  EXPECT_THAT(status, IsDeadlockOf(2));
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("rank 3 stands before F6.0"));
  EXPECT_THAT(message, HasSubstr("rank 4 has performed SEND_F5.0"));
  EXPECT_THAT(message, Not(HasSubstr("rank 0")));
}

TEST(Deadlock, CycleLeavesOutRanksThatMerelyLeadIntoIt) {
  const Schedule compute = FromText(
      {0, 1, 2}, 2, {"F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", "F2.0 F2.1 BW2.0 BW2.1"});
  const absl::Status status = Validate(Lower(compute).value());
  EXPECT_THAT(status, IsDeadlockOf(2));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("rank 0")));
}

// Runs rank by rank, repeatedly, with a queue per ordered pair: the k-th send of a pair completes
// once k receives are posted, and data arrives in that order.
class NaiveRendezvous {
 public:
  explicit NaiveRendezvous(const Schedule& schedule)
      : schedule_(schedule), next_(schedule.actions.size(), 0) {}

  bool EveryRankEnds() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) moved |= Step(rank);
    }
    for (size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < schedule_.actions[r].size()) return false;
    }
    return true;
  }

 private:
  struct Channel {
    int posted = 0;
    std::vector<Action> delivered;  // receives whose data has arrived
  };

  bool Step(Rank rank) {
    size_t& next = next_[static_cast<size_t>(rank.value())];
    if (next == schedule_.list_of(rank).size()) return false;
    const Action& action = schedule_.list_of(rank)[next];
    if (IsReceive(action.op)) {
      ++channels_[{PeerOf(schedule_, action), rank}].posted;
    } else if (IsSend(action.op)) {
      Channel& channel = channels_[{rank, PeerOf(schedule_, action)}];
      if (static_cast<int>(channel.delivered.size()) >= channel.posted) return false;
      channel.delivered.push_back(OtherEnd(action));
    } else if (!InputIsThere(rank, action)) {
      return false;
    }
    ++next;
    return true;
  }

  bool InputIsThere(Rank rank, const Action& action) {
    Action receive{
        .op = Op::kReceiveActivation, .stage = action.stage, .micro_batch = action.micro_batch};
    if (action.op == Op::kForward) {
      if (!schedule_.receives_from_previous(action.stage)) return true;
    } else {
      if (!IsBackward(action.op) || action.op == Op::kBackwardWeight) return true;
      if (!schedule_.sends_to_next(action.stage)) return true;
      receive.op = Op::kReceiveGradient;
    }
    const std::vector<Action>& there = channels_[{PeerOf(schedule_, receive), rank}].delivered;
    return std::find(there.begin(), there.end(), receive) != there.end();
  }

  const Schedule& schedule_;
  std::vector<size_t> next_;
  std::map<std::pair<Rank, Rank>, Channel> channels_;
};

// Swaps random neighbors on random ranks, as far as the order rules of a rank allow.
Schedule Shuffled(Schedule compute, int swaps, std::mt19937& random) {
  for (int i = 0; i < swaps; ++i) {
    std::vector<Action>& list = compute.actions[random() % compute.actions.size()];
    const size_t at = random() % (list.size() - 1);
    const Action& a = list[at];
    const Action& b = list[at + 1];
    const bool both_backward = IsBackward(a.op) && IsBackward(b.op);
    if (a.stage == b.stage && (both_backward || a.micro_batch == b.micro_batch)) continue;
    const bool same_rank_neighbors = std::abs(a.stage.value() - b.stage.value()) == 1;
    if (same_rank_neighbors && a.micro_batch == b.micro_batch) continue;
    std::swap(list[at], list[at + 1]);
  }
  return compute;
}

// Posts some receives later, right before their readers: ranks that send to each other may then
// wait forever.
Schedule Delayed(Schedule lowered, int receives, std::mt19937& random) {
  for (int i = 0; i < receives; ++i) {
    std::vector<Action>& list = lowered.actions[random() % lowered.actions.size()];
    const size_t at = random() % list.size();
    if (!IsReceive(list[at].op)) continue;
    size_t to = at;
    while (to + 1 < list.size() && !IsReceive(list[to + 1].op) &&
           !(IsCompute(list[to + 1].op) && list[to + 1].stage == list[at].stage &&
             list[to + 1].micro_batch == list[at].micro_batch)) {
      ++to;
    }
    std::rotate(list.begin() + static_cast<ptrdiff_t>(at),
                list.begin() + static_cast<ptrdiff_t>(at) + 1,
                list.begin() + static_cast<ptrdiff_t>(to) + 1);
  }
  return lowered;
}

TEST(Deadlock, VerdictAgreesWithANaiveSimulationOfRandomSchedules) {
  std::mt19937 random(20240229);
  int valid = 0;
  int deadlocked = 0;
  const std::vector<Schedule> originals = {HandwrittenV(), HandwrittenH1(),
                                           OneFOneB({3, 4}).value(), GPipe({4, 3}).value()};
  for (int round = 0; round < 4000; ++round) {
    const Schedule& original = originals[static_cast<size_t>(round) % originals.size()];
    const Schedule compute = Shuffled(original, static_cast<int>(random() % 12), random);
    const Schedule lowered =
        Delayed(Lower(compute).value(), static_cast<int>(random() % 4), random);
    const absl::Status status = Validate(lowered);
    const bool ends = NaiveRendezvous(lowered).EveryRankEnds();
    ASSERT_EQ(status.ok(), ends) << ToText(lowered.actions[0]) << "\n" << status;
    EXPECT_EQ(absl::StrContains(status.message(), "deadlock"), !ends);
    ++(ends ? valid : deadlocked);
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(deadlocked, 500);
}

}  // namespace
}  // namespace stagecoach::schedule
