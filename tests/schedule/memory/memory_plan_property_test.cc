// Properties of memory plans over many schedules, sizes and last uses, checked by brute force.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "schedule/generators/generators.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

LastUse RandomUse(std::mt19937& random, int lowest) {
  return static_cast<LastUse>(lowest + static_cast<int>(random() % (3u - unsigned(lowest))));
}

std::vector<StageMemory> RandomStages(const Schedule& schedule, std::mt19937& random) {
  std::vector<StageMemory> stages;
  for (int s = 0; s < schedule.num_stages(); ++s) {
    const auto size = [&random] { return static_cast<int64_t>(random() % 3000); };
    StageMemory memory;
    memory.input_bytes = size();
    memory.input_last_use = RandomUse(random, 0);
    memory.output_bytes = size();
    memory.output_last_use = RandomUse(random, 0);
    memory.stash_bytes = size();
    memory.weight_stash_bytes = size();
    memory.gradient_stash_bytes = size();
    memory.output_gradient_bytes = size();
    memory.output_gradient_last_use = RandomUse(random, 1);
    memory.input_gradient_bytes = s == 0 ? 0 : size();
    stages.push_back(memory);
  }
  return stages;
}

std::vector<Schedule> LoweredSchedules() {
  std::vector<Schedule> schedules = {Lower(HandwrittenH1()).value(), Lower(HandwrittenV()).value()};
  for (int p = 1; p <= 4; ++p) {
    for (int m = 1; m <= 6; ++m) {
      for (const Generator& generator : Generators()) {
        const absl::StatusOr<Schedule> compute =
            generator.generate({.ranks = p, .micro_batches = m});
        if (!compute.ok()) continue;  // it refuses this shape
        const Schedule evaluation = ForwardOnly(compute->rank_of_stage, p, m).value();
        for (const Transfers transfers : {Transfers::kSeparate, Transfers::kGrouped}) {
          schedules.push_back(Lower(*compute, {.transfers = transfers}).value());
          if (m == 6) {
            schedules.push_back(Lower(*compute, {.offload = 0.6, .transfers = transfers}).value());
          }
          schedules.push_back(Lower(evaluation, {.transfers = transfers}).value());
        }
      }
    }
  }
  return schedules;
}

// Calls body(plan, schedule, rank) with random sizes and uses for every rank of many schedules.
template <typename Body>
void ForManyPlans(Body body) {
  std::mt19937 random(11);
  for (const Schedule& schedule : LoweredSchedules()) {
    const std::vector<StageMemory> stages = RandomStages(schedule, random);
    for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
      SCOPED_TRACE(::testing::Message() << schedule.name << " rank " << rank.value());
      body(PlanMemory(schedule, rank, stages).value(), schedule, rank);
    }
  }
}

TEST(PlanMemory, NoTwoBlocksThatLiveAtOnceOverlap) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule&, Rank) {
    for (const Block& a : plan.blocks) {
      EXPECT_LE(a.offset + a.bytes, plan.dynamic_bytes);
      for (const Block& b : plan.blocks) {
        if (&a == &b || a.last < b.first || b.last < a.first) continue;
        ASSERT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
      }
    }
  });
}

TEST(PlanMemory, NoTwoBlocksThatAreOnTheHostAtOnceOverlap) {
  int64_t blocks = 0;
  ForManyPlans([&](const MemoryPlan& plan, const Schedule&, Rank) {
    int64_t extent = 0;
    for (const Block& a : plan.host_blocks) {
      extent = std::max(extent, a.offset + a.bytes);
      for (const Block& b : plan.host_blocks) {
        if (&a == &b || a.last < b.first || b.last < a.first) continue;
        ASSERT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
      }
    }
    EXPECT_EQ(plan.host_dynamic_bytes, extent);
    blocks += std::ssize(plan.host_blocks);
  });
  EXPECT_GT(blocks, 500);
}

// On its device until RELEASE, and again from FETCH until it is read last; on the host from OFFLOAD
// until B.
TEST(PlanMemory, AStashIsSomewhereFromFUntilItIsReadLast) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule& schedule, Rank rank) {
    const std::vector<Action>& list = schedule.list_of(rank);
    const auto at = [&](Op op, const Block& block) {
      const Action wanted = {.op = op, .stage = block.stage, .micro_batch = block.micro_batch};
      const auto found = std::find(list.begin(), list.end(), wanted);
      return found == list.end() ? -1 : static_cast<int32_t>(found - list.begin());
    };
    for (const Block& block : plan.blocks) {
      const bool is_moved = at(Op::kOffload, block) >= 0;
      const auto last_of = [&](Op op) { return std::max(at(op, block), at(Op::kBackward, block)); };
      if (block.kind == BlockKind::kStash && is_moved) {
        EXPECT_EQ(block.last, at(Op::kRelease, block));
      } else if (block.kind == BlockKind::kFetchedStash) {
        EXPECT_EQ(block.first, at(Op::kFetch, block));
        EXPECT_EQ(block.last, last_of(Op::kBackwardInput));
      } else if (block.kind == BlockKind::kFetchedWeightStash) {
        EXPECT_EQ(block.first, at(Op::kFetch, block));
        EXPECT_EQ(block.last, last_of(Op::kBackwardWeight));
      }
    }
    for (const Block& block : plan.host_blocks) {
      EXPECT_EQ(block.first, at(Op::kOffload, block));
      EXPECT_EQ(block.last, std::max(at(Op::kBackwardInput, block), at(Op::kBackward, block)));
    }
  });
}

TEST(PlanMemory, BlocksAreAlignedAndInTheOrderOfTheirFirstAction) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule&, Rank) {
    for (const Block& block : plan.blocks) {
      EXPECT_EQ(block.offset % kBlockAlignment, 0);
      EXPECT_EQ(block.bytes % kBlockAlignment, 0);
    }
    EXPECT_TRUE(std::is_sorted(plan.blocks.begin(), plan.blocks.end(),
                               [](const Block& a, const Block& b) { return a.first < b.first; }));
  });
}

TEST(PlanMemory, BlocksLiveWithinTheList) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule& schedule, Rank rank) {
    for (const Block& block : plan.blocks) {
      EXPECT_GE(block.first, 0);
      EXPECT_LE(block.first, block.last);
      EXPECT_LT(block.last, static_cast<int32_t>(schedule.list_of(rank).size()));
    }
  });
}

TEST(PlanMemory, PeakLiveIsTheLargestSumOverThePositions) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule& schedule, Rank rank) {
    int64_t peak = 0;
    for (int i = 0; i < static_cast<int>(schedule.list_of(rank).size()); ++i) {
      int64_t live = 0;
      for (const Block& block : plan.blocks) {
        if (block.first <= i && i <= block.last) live += block.bytes;
      }
      peak = std::max(peak, live);
    }
    EXPECT_EQ(plan.peak_live_bytes, peak);
    EXPECT_GE(plan.dynamic_bytes, peak);
  });
}

TEST(PlanMemory, EveryBlockAppearsOnce) {
  ForManyPlans([](const MemoryPlan& plan, const Schedule&, Rank) {
    std::set<std::tuple<BlockKind, StageId, MicroBatch>> seen;
    for (const Block& block : plan.blocks) {
      EXPECT_TRUE(seen.emplace(block.kind, block.stage, block.micro_batch).second);
    }
  });
}

TEST(PlanMemory, IsDeterministic) {
  const Schedule schedule = Lower(HandwrittenV()).value();
  const std::vector<StageMemory> stages = TypicalStages(schedule);
  EXPECT_EQ(PlanMemory(schedule, Rank(0), stages)->blocks,
            PlanMemory(schedule, Rank(0), stages)->blocks);
}

TEST(PlanMemory, StashOfOneFOneBIsThatOfTheFormula) {
  constexpr int64_t kStashBytes = 256 + 1024 + 768;  // input, stash, weight stash
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Schedule schedule = Lower(OneFOneB({p, m}).value()).value();
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(PlanMemory(schedule, Rank(r), TypicalStages(schedule))->peak_stash_bytes,
                  std::min(p - r, m) * kStashBytes);
      }
    }
  }
}

TEST(PlanMemory, UniformBlocksArePackedWithoutWaste) {
  for (const Schedule& schedule : LoweredSchedules()) {
    std::vector<StageMemory> stages = TypicalStages(schedule);
    for (StageMemory& memory : stages) {
      memory.input_bytes = memory.output_bytes = memory.output_gradient_bytes = 4096;
      memory.stash_bytes = memory.weight_stash_bytes = memory.gradient_stash_bytes = 4096;
      if (memory.input_gradient_bytes > 0) memory.input_gradient_bytes = 4096;
    }
    for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
      const MemoryPlan plan = PlanMemory(schedule, rank, stages).value();
      EXPECT_EQ(plan.dynamic_bytes, plan.peak_live_bytes) << schedule.name;
    }
  }
}

TEST(PlanMemory, OneFOneBDoesNotGrowWithTheMicroBatches) {
  for (int r = 0; r < 4; ++r) {
    const auto dynamic_bytes = [r](int m) {
      const Schedule schedule = Lower(OneFOneB({4, m}).value()).value();
      return PlanMemory(schedule, Rank(r), TypicalStages(schedule))->dynamic_bytes;
    };
    EXPECT_EQ(dynamic_bytes(16), dynamic_bytes(512));
  }
}

}  // namespace
}  // namespace stagecoach::schedule
