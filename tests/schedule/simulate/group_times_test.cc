// Transfers in groups in virtual time: computed by hand, compared with equations that are solved by
// iteration, and what the times mean for buffers.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/random_costs.h"

namespace stagecoach::schedule {
namespace {

int64_t LinkNs(const Schedule& schedule, const Costs& costs, const Action& send) {
  const StageTimes& times = costs.of(send.stage);
  const int64_t bytes =
      send.op == Op::kSendActivation ? times.output_bytes : times.input_gradient_bytes;
  return costs
      .LinkBetween(schedule.rank_of(send.stage), PeerOf(schedule, send), schedule.num_ranks())
      .TransferNs(bytes);
}

// Calls body(lowered, costs) for every generator, many shapes and random costs.
template <typename Body>
void ForManyGroupedRuns(Body body) {
  std::mt19937 random(13);
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {p, 2 * p, 3 * p + 1}) {
      for (const Generator& generator : Generators()) {
        const absl::StatusOr<Schedule> compute = generator.generate({p, m});
        if (!compute.ok()) continue;
        const Schedule lowered = Lower(*compute, {.transfers = Transfers::kGrouped}).value();
        SCOPED_TRACE(::testing::Message() << generator.name << " p=" << p << " m=" << m);
        body(lowered, RandomCosts(lowered, 400, random));
      }
    }
  }
}

// The times of groups, written as maxima and iterated until nothing changes.
class Equations {
 public:
  Equations(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), ends_(schedule.actions.size()) {}

  // Returns nothing if they have no solution: a deadlock.
  std::optional<int64_t> StepNs() {
    size_t actions = 0;
    for (const std::vector<Action>& list : schedule_.actions) actions += list.size();
    for (size_t round = 0; round < actions + 2; ++round) {
      const auto before = std::pair(arrivals_, ends_);
      int64_t step_ns = 0;
      for (size_t r = 0; r < ends_.size(); ++r) step_ns = std::max(step_ns, WalkRank(r));
      for (const std::vector<Action>& list : schedule_.actions) SetArrivals(list);
      if (before == std::pair(arrivals_, ends_)) return step_ns;
    }
    return std::nullopt;
  }

 private:
  int64_t DurationNs(const Action& action) const {
    const StageTimes& times = costs_.of(action.stage);
    switch (action.op) {
      case Op::kForward:
        return times.forward_ns;
      case Op::kBackwardInput:
        return times.backward_input_ns;
      case Op::kBackwardWeight:
        return times.backward_weight_ns;
      case Op::kBackward:
        return times.backward_ns;
      default:
        return times.step_ns;
    }
  }

  // Returns the time at which the rank ends, as far as known.
  int64_t WalkRank(size_t r) {
    const std::vector<Action>& list = schedule_.actions[r];
    std::vector<int64_t>& ends = ends_[r];
    ends.resize(list.size() + 1, 0);  // of groups, by number
    int64_t clock_ns = 0;
    int64_t awaited_ns = 0;
    size_t group = 0;  // the number of groups before the action
    std::map<Action, size_t> group_of;
    std::map<std::pair<Op, StageId>, size_t> last_on_lane;
    for (size_t i = 0; i < list.size();) {
      if (!IsTransfer(list[i].op)) {
        const size_t count = list[i].overlaps_next ? 2 : 1;
        clock_ns = std::max(clock_ns, awaited_ns);
        int64_t duration_ns = 0;
        for (size_t k = i; k < i + count; ++k) {
          const std::optional<Action> receive = ReceiveBefore(schedule_, list[k]);
          if (receive.has_value()) clock_ns = std::max(clock_ns, ends[group_of.at(*receive)]);
          duration_ns += DurationNs(list[k]);
        }
        clock_ns += duration_ns;
        i += count;
        continue;
      }
      const int64_t start_ns = std::max(clock_ns, group == 0 ? 0 : ends[group - 1]);
      int64_t end_ns = start_ns;
      for (bool joined = true; joined; ++i) {
        joined = list[i].overlaps_next;
        const Action transfer = Alone(list[i]);
        group_of[transfer] = group;
        starts_[transfer] = start_ns;
        group_id_[transfer] = {r, group};
        const Action send = IsSend(transfer.op) ? transfer : OtherEnd(transfer);
        end_ns = std::max(end_ns, arrivals_[send]);
        if (!IsSend(transfer.op)) continue;
        const auto [lane, is_new] = last_on_lane.insert({{send.op, send.stage}, group});
        if (!is_new) awaited_ns = std::max(awaited_ns, ends[lane->second]);
        lane->second = group;
      }
      ends[group++] = end_ns;
    }
    return std::max(clock_ns, group == 0 ? 0 : ends[group - 1]);
  }

  void SetArrivals(const std::vector<Action>& list) {
    std::map<Rank, Action> last_to;
    for (const Action& listed : list) {
      if (!IsSend(listed.op)) continue;
      const Action action = Alone(listed);
      int64_t passes_ns = std::max(starts_[action], starts_[OtherEnd(action)]);
      const auto [last, is_new] = last_to.insert({PeerOf(schedule_, action), action});
      const bool same_group = !is_new && group_id_[last->second] == group_id_[action];
      if (same_group) passes_ns = std::max(passes_ns, arrivals_[last->second]);
      arrivals_[action] = passes_ns + LinkNs(schedule_, costs_, action);
      last->second = action;
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::map<Action, int64_t> arrivals_;  // of sends
  std::map<Action, int64_t> starts_;    // of the groups of both ends
  std::map<Action, std::pair<size_t, size_t>> group_id_;
  std::vector<std::vector<int64_t>> ends_;  // index: rank; group
};

TEST(SimulateInGroups, TimesAreTheSolutionOfTheirEquations) {
  int runs = 0;
  ForManyGroupedRuns([&runs](const Schedule& lowered, const Costs& costs) {
    const std::optional<int64_t> expected = Equations(lowered, costs).StepNs();
    ASSERT_TRUE(expected.has_value());
    EXPECT_EQ(SimulateDurations(lowered, costs, Sends::kGrouped).value().step_ns, *expected);
    ++runs;
  });
  EXPECT_GT(runs, 100);
}

// A group is done as a whole, and the next one waits for it: F1.0 waits for F0.1's message.
TEST(SimulateInGroups, AGroupIsDoneWhenAllOfItIs) {
  Costs costs;
  costs.stages = {{.forward_ns = 10}, {.forward_ns = 100}};
  const std::vector<std::string> sender = {"F0.0 SEND_F0.0 F0.1 SEND_F0.1"};
  const auto end_ns = [&](const std::string& receiver) {
    const Schedule lowered = FromText({0, 1}, 2, {sender[0], receiver});
    return SimulateDurations(lowered, costs, Sends::kGrouped).value().step_ns;
  };
  EXPECT_EQ(end_ns("RECV_F1.0+ RECV_F1.1 F1.0 F1.1"), 20 + 100 + 100);
  EXPECT_EQ(end_ns("RECV_F1.0 F1.0 RECV_F1.1 F1.1"), 10 + 100 + 100);
}

// F0.0 and F0.1 end at 10 and 20, but the second message is received only behind F1.0, at 110; the
// third group of rank 0 waits for the second, and the action behind it for its lane.
TEST(SimulateInGroups, AnActionWaitsForTheSendBeforeTheLastOnEachLane) {
  const Schedule lowered = FromText({0, 1}, 4,
                                    {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 F0.2 SEND_F0.2 F0.3 SEND_F0.3",
                                     "RECV_F1.0 F1.0 RECV_F1.1 F1.1 RECV_F1.2 F1.2 RECV_F1.3 "
                                     "F1.3"});
  Costs costs;
  costs.stages = {{.forward_ns = 10}, {.forward_ns = 100}};
  const Simulation simulation =
      Simulate(lowered, costs, {.sends = Sends::kGrouped, .keep_trace = true}).value();
  const std::vector<TimedAction>& sender = simulation.trace.actions[0];
  EXPECT_EQ(sender[4].start_ns, 20);    // F0.2: SEND_F0.0 has passed by now
  EXPECT_EQ(sender[5].start_ns, 30);    // SEND_F0.2 is posted,
  EXPECT_EQ(sender[5].end_ns, 210);     // passes when rank 1 reaches its receive,
  EXPECT_EQ(sender[6].reached_ns, 30);  // and F0.3 waits for SEND_F0.1.
  EXPECT_EQ(sender[6].start_ns, 110);
}

// Both messages go from rank 0 to rank 1 in one group. (The input of stage 2 is left out.)
TEST(SimulateInGroups, MessagesOfOnePairOfRanksPassOneAfterTheOther) {
  const Schedule lowered =
      FromText({0, 1, 0, 1}, 1, {"F0.0 SEND_F2.0+ SEND_F0.0", "RECV_F3.0+ RECV_F1.0 F1.0 F3.0"});
  Costs costs;
  costs.stages.resize(4);
  costs.stages[1].forward_ns = 1;
  costs.links.assign(4, {.latency_ns = 40});
  const Simulation simulation =
      Simulate(lowered, costs, {.sends = Sends::kGrouped, .keep_trace = true}).value();
  EXPECT_EQ(simulation.trace.actions[0][1].end_ns, 40);
  EXPECT_EQ(simulation.trace.actions[0][2].end_ns, 80);
  EXPECT_EQ(simulation.step_ns, 81);
}

// The block before does not use what the memory planner assigns to the next one: neither a
// computation nor a message touches it. A message touches its buffers while it passes.
TEST(SimulateInGroups, BuffersAreFreeWhenTheyAreClaimed) {
  int64_t shared = 0;
  ForManyGroupedRuns([&shared](const Schedule& lowered, const Costs& costs) {
    const Simulation simulation =
        Simulate(lowered, costs, {.sends = Sends::kGrouped, .keep_trace = true}).value();
    const std::vector<StageMemory> memory = TypicalStages(lowered);
    for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
      const std::vector<TimedAction>& list = simulation.trace.list_of(rank);
      const auto claimed_ns = [&](const Block& block) {
        const TimedAction& first = list[static_cast<size_t>(block.first)];
        if (!IsTransfer(first.action.op)) return first.start_ns;
        return first.end_ns - LinkNs(lowered, costs, OtherEnd(first.action));
      };
      // The latest end of the block's users: every action between its positions that is of its
      // stage or the neighbor on this rank, and of its micro-batch.
      const auto free_ns = [&](const Block& block) {
        int64_t ns = 0;
        for (int32_t i = block.first; i <= block.last; ++i) {
          const TimedAction& timed = list[static_cast<size_t>(i)];
          const bool is_output =
              block.kind == BlockKind::kOutput || block.kind == BlockKind::kInputGradient;
          const bool is_its_send =
              is_output && timed.action.stage == block.stage &&
              timed.action.micro_batch == block.micro_batch &&
              timed.action.op ==
                  (block.kind == BlockKind::kOutput ? Op::kSendActivation : Op::kSendGradient);
          const bool reads = !IsTransfer(timed.action.op) &&
                             timed.action.micro_batch == block.micro_batch && i == block.last;
          if (is_its_send || reads) ns = std::max(ns, timed.end_ns);
        }
        return ns;
      };
      const std::vector<Block> blocks = PlanMemory(lowered, rank, memory).value().blocks;
      for (const Block& later : blocks) {
        for (const Block& earlier : blocks) {
          if (earlier.last >= later.first) continue;
          // The trace has both of an overlapped pair at one time; buffers pass from the first to
          // the second.
          if (list[static_cast<size_t>(earlier.last)].action.overlaps_next &&
              later.first == earlier.last + 1) {
            continue;
          }
          if (earlier.offset + earlier.bytes <= later.offset) continue;
          if (later.offset + later.bytes <= earlier.offset) continue;
          ASSERT_LE(free_ns(earlier), claimed_ns(later))
              << ToString(list[static_cast<size_t>(later.first)].action);
          ++shared;
        }
      }
    }
  });
  EXPECT_GT(shared, 1000);
}

// The price of the stricter transfers when messages cost nothing: none in the timeline of units, by
// which receives were placed.
TEST(SimulateInGroups, CostsNothingWhereMessagesTakeNoTimeAndOperationsUnits) {
  for (const Generator& generator : Generators()) {
    const Schedule compute = generator.generate({4, 8}).value();
    bool has_fused = false;
    for (const std::vector<Action>& list : compute.actions) {
      for (const Action& action : list) has_fused |= action.op == Op::kBackward;
    }
    if (has_fused) continue;  // two units admit a message that the reader also waits for
    const Costs costs =
        LoopCosts(4, compute.num_stages() / 4,
                  {int64_t{compute.num_stages() / 4}, int64_t{compute.num_stages() / 4},
                   int64_t{compute.num_stages() / 4}},
                  0);
    const Schedule lowered = Lower(compute, {.transfers = Transfers::kGrouped}).value();
    EXPECT_EQ(SimulateDurations(lowered, costs, Sends::kGrouped).value().step_ns,
              SimulateDurations(compute, costs).value().step_ns)
        << generator.name;
  }
}

}  // namespace
}  // namespace stagecoach::schedule
