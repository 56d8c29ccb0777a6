// Transfers in groups: what Lower makes of them, and the verdicts of validator and simulator
// compared with an independent, deliberately simple executor.

#include "schedule/transforms/transfer_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/ir/action_table.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/progress.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/every_order.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/perform_groups.h"

namespace stagecoach::schedule {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LoweringOptions kForGroups = {.transfers = Transfers::kGrouped};

std::vector<std::string> LoweredText(const Schedule& compute) {
  std::vector<std::string> text;
  const Schedule lowered = Lower(compute, kForGroups).value();
  for (const std::vector<Action>& list : lowered.actions) text.push_back(ToText(list));
  return text;
}

Costs Units(const Schedule& schedule) {
  Costs costs;
  costs.stages.assign(
      schedule.rank_of_stage.size(),
      {.forward_ns = 1, .backward_input_ns = 1, .backward_weight_ns = 1, .backward_ns = 2});
  return costs;
}

// Expects that the schedule completes in groups, according to the validator and the simulator.
void ExpectEnds(const Schedule& compute) {
  const Schedule lowered = Lower(compute, kForGroups).value();
  const std::optional<Violation> violation = FindViolation(lowered, Transfers::kGrouped);
  // Shuffled orders may break other rules, all of which come before those of progress.
  EXPECT_TRUE(!violation.has_value() || violation->cycle.empty())
      << compute.name << ": " << violation->reason << "\n"
      << DrawCycle(lowered, violation->cycle);
  if (!lowered.IsLowered()) return;  // F alone, on one rank
  EXPECT_TRUE(SimulateDurations(lowered, Units(compute), Sends::kGrouped).ok()) << compute.name;
}

// Messages leave rank 0 at 1 and 2, rank 1 at 4 and 7; operations of rank 1 end at 2, 4, 5, 7, and
// BW0.0 at 6.
TEST(LowerForGroups, ReceivesStandWhereTheirMessagesAreSent) {
  EXPECT_THAT(LoweredText(OneFOneB({2, 2}).value()),
              ElementsAre("F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.0 BW0.0 RECV_B0.1 BW0.1 STEP0",
                          "RECV_F1.0 F1.0 RECV_F1.1 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1"));
}

TEST(LowerForGroups, FusesForwardSendAndBackwardReceiveInTheSteadyState) {
  EXPECT_THAT(LoweredText(OneFOneB({2, 4}).value())[0],
              HasSubstr("BW0.0 F0.2 RECV_B0.1+ SEND_F0.2 BW0.1"));
}

// Both messages of the pair are of one moment, and go to one rank.
TEST(LowerForGroups, MessagesOfAnOverlappedPairKeepItsOrder) {
  const Schedule compute = FromText(
      {0, 1, 0}, 2, {"F0.0 F0.1 F2.0 BW2.0 F2.1 BW2.1 BW0.0 BW0.1", "F1.0 F1.1+ BW1.0 BW1.1"});
  const Schedule lowered = Lower(compute, kForGroups).value();
  EXPECT_THAT(ToText(lowered.actions[1]), HasSubstr(" SEND_F1.1+ SEND_B1.0 "));
  EXPECT_THAT(ToText(lowered.actions[0]), HasSubstr(" RECV_F2.1+ RECV_B0.0 "));
}

TEST(LowerForGroups, EveryGeneratedScheduleIsValid) {
  int schedules = 0;
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {1, 2, p, p + 1, 2 * p, 3 * p + 1, 24}) {
      for (const Generator& generator : Generators()) {
        for (const int v : generator.any_chunks ? std::vector<int>{1, 2, 3, 4} : std::vector{0}) {
          const absl::StatusOr<Schedule> compute = generator.generate({p, m, v});
          if (!compute.ok()) continue;
          const Schedule evaluation = ForwardOnly(compute->rank_of_stage, p, m).value();
          for (const Schedule& schedule : {*compute, evaluation}) {
            ExpectEnds(schedule);
            const absl::Status status =
                Validate(Lower(schedule, kForGroups).value(), Transfers::kGrouped);
            EXPECT_TRUE(status.ok()) << generator.name << " " << p << " " << m << ": " << status;
          }
          ++schedules;
        }
      }
    }
  }
  EXPECT_GT(schedules, 500);
}

TEST(LowerForGroups, EveryOrderOfSmallPipelinesEnds) {
  struct Shape {
    int ranks, chunks, micro_batches;
    Placement placement;
  };
  int orders = 0;
  for (const Shape& shape : {Shape{2, 1, 3, Placement::kLoop}, Shape{3, 1, 2, Placement::kLoop},
                             Shape{2, 2, 1, Placement::kLoop}, Shape{2, 2, 1, Placement::kV},
                             Shape{3, 2, 1, Placement::kV}}) {
    AutomaticRequest request;
    request.ranks = shape.ranks;
    request.chunks = shape.chunks;
    request.micro_batches = shape.micro_batches;
    request.placement = shape.placement;
    request.costs =
        UniformCosts(PlaceStages(shape.placement, shape.ranks, shape.chunks), {2, 2, 2}, 0);
    // Makes some operations take two units.
    for (StageTimes& times : request.costs.stages) times.backward_ns = 3;
    ForEveryOrder(request, [&orders](const Schedule& compute) {
      ExpectEnds(compute);
      ++orders;
    });
  }
  EXPECT_GT(orders, 5000);
}

// Looping and V-shaped placements, several stages per rank, both directions between one pair of
// ranks, operations of one and of two units, overlapped pairs.
std::vector<Schedule> Originals() {
  return {HandwrittenH1(),
          HandwrittenV(),
          OneFOneB({4, 6}).value(),
          GPipe({3, 4}).value(),
          ZeroBubbleV({3, 6}).value(),
          ZeroBubbleH2({4, 6}).value(),
          LoopedBfs({2, 5, 3}).value(),
          Generate("interleaved", {.ranks = 3, .micro_batches = 6, .chunks = 3}).value(),
          DualPipeV({3, 8}).value()};
}

// Swaps random neighbors; the result may have any order, even one that cannot be performed.
Schedule Shuffled(Schedule compute, size_t swaps, std::mt19937& random) {
  for (size_t i = 0; i < swaps; ++i) {
    std::vector<Action>& list = compute.actions[random() % compute.actions.size()];
    const size_t at = random() % (list.size() - 1);
    const bool in_pair = list[at].overlaps_next || list[at + 1].overlaps_next ||
                         (at > 0 && list[at - 1].overlaps_next);
    if (!in_pair && list[at].stage != list[at + 1].stage) std::swap(list[at], list[at + 1]);
  }
  return compute;
}

TEST(LowerForGroups, AddsNoDeadlockToAnyOrderWithoutCycles) {
  std::mt19937 random(20260230);
  int without_cycle = 0;
  const std::vector<Schedule> originals = Originals();
  for (size_t round = 0; round < 4000; ++round) {
    const Schedule compute = Shuffled(originals[round % originals.size()], random() % 40, random);
    if (!SimulateDurations(compute, Units(compute)).ok()) continue;
    ExpectEnds(compute);
    ++without_cycle;
  }
  EXPECT_GT(without_cycle, 2000);
}

// Rank 0 receives a gradient before it sends what rank 1 needs for that gradient.
TEST(DeadlockInGroups, OfAReceivePostedEarlyIsDrawn) {
  const Schedule lowered = Lower(OneFOneB({2, 2}).value()).value();
  ASSERT_TRUE(Validate(lowered).ok());
  const std::optional<Violation> violation = FindViolation(lowered, Transfers::kGrouped);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(DrawCycle(lowered, violation->cycle),
            "  ┌─▶ rank 0 stands before RECV_B0.0 (position 1) until\n"
            "  │   rank 1 has performed SEND_B1.0 (position 4)\n"
            "  │   rank 1 stands before RECV_F1.0 (position 0) until\n"
            "  └── rank 0 has performed SEND_F0.0 (position 2)\n");
  EXPECT_THAT(
      std::string(Validate(lowered, Transfers::kGrouped).message()),
      AllOf(HasSubstr("deadlock of 2 ranks"), HasSubstr("transfers are performed in groups"),
            HasSubstr(DrawCycle(lowered, violation->cycle))));
}

// Messages connect rank 0's send of F0.2 with its receive of F3.0, which are two groups.
TEST(DeadlockInGroups, OfTwoGroupsOfOneMomentIsDrawn) {
  const Schedule lowered = FromText(
      {0, 1, 2, 0}, 3,
      {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 F0.2 SEND_F0.2 RECV_F3.0 F3.0 RECV_F3.1 F3.1 RECV_F3.2 F3.2",
       "RECV_F1.0 F1.0 RECV_F1.1+ SEND_F1.0 F1.1 RECV_F1.2+ SEND_F1.1 F1.2 SEND_F1.2",
       "RECV_F2.0 F2.0 RECV_F2.1+ SEND_F2.0 F2.1 RECV_F2.2+ SEND_F2.1 F2.2 SEND_F2.2"});
  EXPECT_TRUE(Validate(lowered).ok());
  const std::optional<Violation> violation = FindViolation(lowered, Transfers::kGrouped);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(DrawCycle(lowered, violation->cycle),
            "  ┌─▶ rank 0 stands before SEND_F0.2 (position 5) until\n"
            "  │   rank 1 has performed RECV_F1.2+ (position 5)\n"
            "  │   rank 1 stands before SEND_F1.1 (position 6) until\n"
            "  │   rank 2 has performed RECV_F2.1+ (position 2)\n"
            "  │   rank 2 stands before SEND_F2.0 (position 3) until\n"
            "  └── rank 0 has performed RECV_F3.0 (position 6)\n");
}

TEST(DeadlockInGroups, SaysTheSimulatorToo) {
  const Schedule lowered = Lower(OneFOneB({2, 2}).value()).value();
  const absl::Status status = SimulateDurations(lowered, Units(lowered), Sends::kGrouped).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
}

// Within a group, transfers of both directions wait for each other in no particular order.
TEST(ValidateForGroups, TakesNothingThatWouldNotRunSeparately) {
  const Schedule lowered =
      FromText({0, 1}, 2,
               {"F0.0 SEND_F0.0 F0.1 SEND_F0.1+ RECV_B0.0 BW0.0 RECV_B0.1 BW0.1 STEP0",
                "RECV_F1.0 F1.0 BW1.0 SEND_B1.0+ RECV_F1.1 F1.1 BW1.1 SEND_B1.1 STEP1"});
  const ActionTable table = ActionTable::Build(lowered).value();
  EXPECT_TRUE(FindDeadlockInGroups(lowered, table, TransferGroups(lowered)).empty());
  EXPECT_EQ(Validate(lowered, Transfers::kGrouped), Validate(lowered));
  EXPECT_FALSE(Validate(lowered).ok());
}

TEST(ValidateForGroups, RefusesTwoSendsOfALaneInOneGroup) {
  const Schedule lowered =
      FromText({0, 1}, 2, {"F0.0 F0.1 SEND_F0.0+ SEND_F0.1", "RECV_F1.0+ RECV_F1.1 F1.0 F1.1"});
  EXPECT_TRUE(Validate(lowered).ok());
  const std::optional<Violation> violation = FindViolation(lowered, Transfers::kGrouped);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->position, 3);
  EXPECT_THAT(violation->reason, HasSubstr("second send on its lane"));
}

// Moves some transfers by some places, to either side, and joins or separates some.
Schedule Moved(Schedule lowered, size_t transfers, std::mt19937& random) {
  for (size_t i = 0; i < transfers; ++i) {
    std::vector<Action>& list = lowered.actions[random() % lowered.actions.size()];
    size_t at = random() % list.size();
    const bool later = random() % 2 == 0;
    for (size_t steps = 1 + random() % 6; steps > 0; --steps) {
      const size_t to = later ? at + 1 : at - 1;  // wraps around below 0
      if (to >= list.size() || !IsTransfer(list[at].op)) break;
      std::swap(list[at], list[to]);
      at = to;
    }
  }
  for (std::vector<Action>& list : lowered.actions) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (!IsTransfer(list[i].op)) continue;
      const bool may_join = i + 1 < list.size() && IsTransfer(list[i + 1].op);
      list[i].overlaps_next = may_join && (random() % 20 == 0 || list[i].overlaps_next);
    }
  }
  return lowered;
}

TEST(DeadlockInGroups, VerdictsAgreeWithANaiveExecutorOfRandomSchedules) {
  std::mt19937 random(20240230);
  int ends = 0;
  int deadlocked = 0;
  int deadlocked_in_nccl = 0;
  int only_separately = 0;
  const std::vector<Schedule> originals = Originals();
  for (size_t round = 0; round < 12000; ++round) {
    const Schedule& original = originals[round % originals.size()];
    const LoweringOptions options = random() % 4 == 0 ? LoweringOptions() : kForGroups;
    const Schedule lowered = Moved(Lower(Shuffled(original, random() % 4, random), options).value(),
                                   random() % 10, random);
    const std::optional<Violation> separately = FindViolation(lowered);
    if (separately.has_value() && separately->cycle.empty()) continue;  // breaks rules 1 to 4
    const bool comes_to_end = EveryRankEnds(lowered, {}, random);
    ASSERT_EQ(EveryRankEnds(lowered, {}, random), comes_to_end);
    const ActionTable table = ActionTable::Build(lowered).value();
    ASSERT_EQ(FindDeadlockInGroups(lowered, table, TransferGroups(lowered)).empty(), comes_to_end);
    for (const int channels : {1, 2, 32}) {
      if (comes_to_end) {
        ASSERT_TRUE(EveryRankEnds(lowered, {channels}, random)) << channels;
      } else if (!EveryRankEnds(lowered, {channels}, random)) {
        ++deadlocked_in_nccl;
      }
    }
    if (comes_to_end) {
      ASSERT_TRUE(SimulateDurations(lowered, Units(lowered), Sends::kGrouped).ok());
    }
    ++(comes_to_end ? ends : deadlocked);
    if (!comes_to_end && !separately.has_value()) {
      EXPECT_FALSE(Validate(lowered, Transfers::kGrouped).ok());
      ++only_separately;
    }
  }
  EXPECT_GT(ends, 1000);
  EXPECT_GT(deadlocked, 1000);
  EXPECT_GT(deadlocked_in_nccl, 1000);
  EXPECT_GT(only_separately, 300);
}

TEST(PerformedInGroups, EveryScheduleEndsOnAnyNumberOfChannels) {
  std::mt19937 random(20261123);
  int performed = 0;
  for (int p = 2; p <= 16; ++p) {
    for (const int m : {p, 2 * p, 3 * p + 1}) {
      for (const Generator& generator : Generators()) {
        for (const int v : generator.any_chunks ? std::vector<int>{2, 3} : std::vector{0}) {
          const absl::StatusOr<Schedule> compute = generator.generate({p, m, v});
          if (!compute.ok()) continue;
          const Schedule lowered = Lower(*compute, kForGroups).value();
          const absl::Status status = Validate(lowered, Transfers::kGrouped);
          EXPECT_TRUE(status.ok()) << generator.name << " " << p << " " << m << ": " << status;
          for (const int channels : {1, 2, 32}) {
            EXPECT_TRUE(EveryRankEnds(lowered, {channels}, random))
                << generator.name << " " << p << " " << m << " " << v << " on " << channels;
            ++performed;
          }
        }
      }
    }
  }
  EXPECT_GT(performed, 1000);
}

// Rank 0 posts RECV_F3.2, RECV_B0.0, SEND_F0.3 and SEND_B3.1 at once, of which SEND_B3.1 is in the
// batch behind that of RECV_F3.2. The latter's message is in rank 1's next group, and SEND_B3.1's
// in the current one.
TEST(PerformedInGroups, LargerGroupsOfDualPipeVHang) {
  std::mt19937 random(20261123);
  const Schedule lowered = Lower(DualPipeV({2, 6}).value(), kForGroups).value();
  const Schedule larger = WithLargestGroups(lowered);
  for (const int channels : {1, 2, 32}) {
    EXPECT_TRUE(EveryRankEnds(lowered, {channels}, random)) << channels;
    EXPECT_FALSE(EveryRankEnds(larger, {channels}, random)) << channels;
  }
  const std::optional<Violation> violation = FindViolation(larger, Transfers::kGrouped);
  ASSERT_TRUE(violation.has_value());
  EXPECT_THAT(violation->reason, HasSubstr("join the two on both ranks or on neither"));
}

// Each entry waits for the next: for the other end of its message, in a group that the peer has not
// started, or in which it waits.
TEST(DeadlockInGroups, EveryEntryOfACycleWaitsForTheNext) {
  for (const Schedule& compute : Originals()) {
    const Schedule lowered = Lower(compute).value();
    const std::optional<Violation> violation = FindViolation(lowered, Transfers::kGrouped);
    if (!violation.has_value()) continue;
    const TransferGroups groups(lowered);
    const std::vector<Wait>& cycle = violation->cycle;
    int not_started = 0;
    for (size_t i = 0; i < cycle.size(); ++i) {
      const Wait& wait = cycle[i];
      const Wait& next = cycle[(i + 1) % cycle.size()];
      const auto at = [&](Rank rank, int32_t position) {
        return Alone(lowered.list_of(rank)[static_cast<size_t>(position)]);
      };
      EXPECT_EQ(wait.peer, next.rank);
      EXPECT_EQ(OtherEnd(at(wait.rank, wait.position)), at(wait.peer, wait.peer_position));
      const int32_t awaited = groups.At(wait.peer, wait.peer_position);
      EXPECT_LE(groups.At(next.rank, next.position), awaited);
      if (groups.At(next.rank, next.position) < awaited) ++not_started;
    }
    EXPECT_GT(not_started, 0);
  }
}

}  // namespace
}  // namespace stagecoach::schedule
