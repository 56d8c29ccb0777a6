// Damages valid schedules in every place and in every way that breaks a rule by construction, and
// expects the validator to refuse each mutant.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

std::vector<Schedule> ValidSchedules() {
  std::vector<Schedule> originals = {Lower(HandwrittenH1()).value(), Lower(HandwrittenV()).value()};
  for (int p = 1; p <= 3; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      for (const Generator& generator : Generators()) {
        const absl::StatusOr<Schedule> schedule = generator.generate({p, m});
        if (!schedule.ok()) continue;
        originals.push_back(Lower(*schedule).value());
        const bool is_largest = p == 3 && m == 6;
        if (is_largest) originals.push_back(Lower(*schedule, {.offload = 0.7}).value());
        const Schedule forward = ForwardOnly(schedule->rank_of_stage, p, m).value();
        originals.push_back(Lower(forward).value());
      }
    }
  }
  return originals;
}

// Calls body(schedule, list, position) for every action of every original; `list` is a mutable list
// of `schedule`, which is a separate copy.
template <typename Body>
void ForEveryAction(Body body) {
  for (const Schedule& original : ValidSchedules()) {
    for (size_t r = 0; r < original.actions.size(); ++r) {
      for (size_t i = 0; i < original.actions[r].size(); ++i) {
        SCOPED_TRACE(::testing::Message() << original.name << " rank " << r << ": "
                                          << ToText(original.actions[r]) << ", position " << i);
        Schedule mutant = original;
        body(mutant, mutant.actions[r], i);
      }
    }
  }
}

void ExpectCaught(const Schedule& mutant) {
  EXPECT_EQ(Validate(mutant).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Mutants, OriginalsAreValid) {
  for (const Schedule& original : ValidSchedules()) {
    EXPECT_TRUE(Validate(original).ok()) << original.name << ": " << Validate(original);
  }
}

TEST(Mutants, DroppedActionIsCaught) {
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    list.erase(list.begin() + static_cast<ptrdiff_t>(i));
    ExpectCaught(mutant);
  });
}

TEST(Mutants, DoubledActionIsCaught) {
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    list.push_back(Action(list[i]));
    ExpectCaught(mutant);
  });
}

TEST(Mutants, WrongStageIsCaught) {
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    const StageId right = list[i].stage;
    for (StageId wrong(-1); wrong.value() <= mutant.num_stages(); ++wrong) {
      if (wrong == right) continue;
      list[i].stage = wrong;
      ExpectCaught(mutant);
    }
  });
}

TEST(Mutants, WrongMicroBatchIsCaught) {
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    const MicroBatch right = list[i].micro_batch;
    for (MicroBatch wrong(-1); wrong.value() <= mutant.num_micro_batches; ++wrong) {
      if (wrong == right) continue;
      list[i].micro_batch = wrong;
      ExpectCaught(mutant);
    }
  });
}

TEST(Mutants, WrongOperationIsCaught) {
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    const Op right = list[i].op;
    for (int wrong = 0; wrong < kNumOps; ++wrong) {
      if (static_cast<Op>(wrong) == right) continue;
      list[i].op = static_cast<Op>(wrong);
      ExpectCaught(mutant);
    }
  });
}

// Returns true if `earlier` must precede `later` on one rank by a stated rule, judged from the two
// alone.
bool MustPrecede(const Schedule& schedule, const Action& earlier, const Action& later) {
  const bool same_stage = earlier.stage == later.stage;
  const bool same_micro_batch = earlier.micro_batch == later.micro_batch;
  if (later.op == Op::kStep) return same_stage && IsCompute(earlier.op);
  if (IsBackward(earlier.op) && earlier.op == later.op) return same_stage && !same_micro_batch;
  if ((IsSend(earlier.op) && IsSend(later.op)) || (IsReceive(earlier.op) && IsReceive(later.op))) {
    return PeerOf(schedule, earlier) == PeerOf(schedule, later);
  }
  if (!same_stage || !same_micro_batch) return false;
  if (earlier.op == Op::kForward) {
    return IsBackward(later.op) || later.op == Op::kSendActivation || later.op == Op::kOffload;
  }
  if (earlier.op == Op::kReceiveActivation) return later.op == Op::kForward;
  if (earlier.op == Op::kReceiveGradient) return IsBackward(later.op);
  if (earlier.op == Op::kOffload) return later.op == Op::kRelease;
  if (earlier.op == Op::kRelease) return later.op == Op::kFetch;
  if (earlier.op == Op::kFetch) return IsBackward(later.op);
  return (earlier.op == Op::kBackwardInput || earlier.op == Op::kBackward) &&
         (later.op == Op::kBackwardWeight || later.op == Op::kSendGradient);
}

TEST(Mutants, SendMovedBehindTheNextOfItsPairIsCaught) {
  int moved = 0;
  ForEveryAction([&moved](Schedule& mutant, std::vector<Action>& list, size_t i) {
    if (!IsSend(list[i].op)) return;
    const Rank peer = PeerOf(mutant, list[i]);
    for (size_t j = i + 1; j < list.size(); ++j) {
      if (!IsSend(list[j].op) || PeerOf(mutant, list[j]) != peer) continue;
      std::rotate(list.begin() + static_cast<ptrdiff_t>(i),
                  list.begin() + static_cast<ptrdiff_t>(i) + 1,
                  list.begin() + static_cast<ptrdiff_t>(j) + 1);
      ExpectCaught(mutant);
      ++moved;
      return;
    }
  });
  EXPECT_GT(moved, 100);
}

TEST(Mutants, PairThatIsNoneIsCaught) {
  // Transfers may stand together in any order.
  ForEveryAction([](Schedule& mutant, std::vector<Action>& list, size_t i) {
    const bool forward_first = list[i].op == Op::kForward;
    list[i].overlaps_next = true;
    const bool pair =
        i + 1 < list.size() && list[i].micro_batch != list[i + 1].micro_batch &&
        !list[i + 1].overlaps_next &&
        (forward_first ? IsBackward(list[i + 1].op) && list[i + 1].op != Op::kBackwardWeight
                       : IsBackward(list[i].op) && list[i].op != Op::kBackwardWeight &&
                             list[i + 1].op == Op::kForward);
    const bool transfers =
        i + 1 < list.size() && IsTransfer(list[i].op) && IsTransfer(list[i + 1].op);
    if (!pair && !transfers) ExpectCaught(mutant);
  });
}

TEST(Mutants, SwapThatBreaksARuleIsCaught) {
  int swaps = 0;
  ForEveryAction([&swaps](Schedule& mutant, std::vector<Action>& list, size_t i) {
    for (size_t j = i + 1; j < list.size(); ++j) {
      if (!MustPrecede(mutant, list[i], list[j])) continue;
      std::swap(list[i], list[j]);
      ExpectCaught(mutant);
      std::swap(list[i], list[j]);
      ++swaps;
    }
  });
  EXPECT_GT(swaps, 1000);  // the filter has left something to test
}

}  // namespace
}  // namespace stagecoach::schedule
