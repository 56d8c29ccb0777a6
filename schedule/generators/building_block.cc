// Schedules that repeat the passes of one micro-batch: V-Half and V-Min of generators.h.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "schedule/generators/generator_parts.h"
#include "schedule/generators/generators.h"

namespace stagecoach::schedule {
namespace {

// Every rank performs six passes per micro-batch: F, B and W of two chunks.
constexpr int kPeriod = 6;

// Units of time between the start of a pass and that of its predecessor in the neighboring stage.
// Each of p ranks stashes about p / 12 times the sum of all four, in whole-device micro-batches.
struct Hops {
  int forward_down;   // F of chunk 0, from rank to rank
  int forward_up;     // F of chunk 1
  int backward_down;  // B of chunk 1
  int backward_up;    // B of chunk 0
};

// Units of time between the two passes of a rank where the path of a micro-batch turns around.
struct Turns {
  int forward = 1;   // on the last rank, F of chunk 0 to F of chunk 1
  int loss = 1;      // on rank 0, F of chunk 1 to B of chunk 1
  int backward = 1;  // on the last rank, B of chunk 1 to B of chunk 0
};

struct Pass {
  Op op;
  int chunk;
  int start;  // of micro-batch 0
};
using BlockPasses = std::array<Pass, kPeriod>;

BlockPasses BlockOf(int p, int r, const Hops& hops, const Turns& turns) {
  const int up = p - 1 - r;  // ranks from here to the last one
  const int forward0 = hops.forward_down * r;
  const int last_forward0 = hops.forward_down * (p - 1);
  const int forward1 = last_forward0 + turns.forward + hops.forward_up * up;
  const int last_forward1 = last_forward0 + turns.forward + hops.forward_up * (p - 1);
  const int backward1 = last_forward1 + turns.loss + hops.backward_down * r;
  const int last_backward1 = last_forward1 + turns.loss + hops.backward_down * (p - 1);
  const int backward0 = last_backward1 + turns.backward + hops.backward_up * up;
  return {{{Op::kForward, 0, forward0},
           {Op::kForward, 1, forward1},
           {Op::kBackwardInput, 1, backward1},
           {Op::kBackwardInput, 0, backward0},
           {Op::kBackwardWeight, 1, backward1},
           {Op::kBackwardWeight, 0, backward0}}};
}

// Puts the two W into the next free units after their B. Returns false if the other passes of
// different micro-batches would meet.
bool Complete(BlockPasses& block) {
  std::array<bool, kPeriod> taken = {};
  for (Pass& pass : block) {
    if (pass.op == Op::kBackwardWeight) {
      while (taken[static_cast<size_t>(pass.start % kPeriod)]) ++pass.start;
    }
    bool& unit = taken[static_cast<size_t>(pass.start % kPeriod)];
    if (unit) return false;
    unit = true;
  }
  return true;
}

bool CompleteAll(std::vector<BlockPasses>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(),
                     [](BlockPasses& block) { return Complete(block); });
}

// Returns the blocks of all ranks with the shortest turns for which no two passes meet. If p is not
// a multiple of 3, the turns are short; in general some unit of the period is free for each.
std::vector<BlockPasses> FindBlocks(int p, const Hops& hops) {
  for (int total = 3; total <= 3 * kPeriod; ++total) {
    for (int forward = 1; forward <= total - 2; ++forward) {
      for (int loss = 1; forward + loss <= total - 1; ++loss) {
        const Turns turns{forward, loss, total - forward - loss};
        std::vector<BlockPasses> blocks;
        for (int r = 0; r < p; ++r) blocks.push_back(BlockOf(p, r, hops, turns));
        if (CompleteAll(blocks)) return blocks;
      }
    }
  }
  STAGECOACH_CHECK(false, "hops for which passes always meet");
}

absl::StatusOr<Schedule> Repeat(absl::string_view name, const Hops& hops,
                                const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule(name, shape));
  const std::vector<BlockPasses> blocks = FindBlocks(shape.ranks, hops);
  for (int r = 0; r < shape.ranks; ++r) {
    std::vector<Pass> passes;
    for (const Pass& pass : blocks[static_cast<size_t>(r)]) {
      for (int i = 0; i < shape.micro_batches; ++i) {
        passes.push_back({pass.op, pass.chunk, pass.start + i * kPeriod});
      }
    }
    std::sort(passes.begin(), passes.end(),
              [](const Pass& a, const Pass& b) { return a.start < b.start; });
    RankWriter writer(schedule, Rank(r));
    for (const Pass& pass : passes) writer.Add(pass.op, pass.chunk);
  }
  return schedule;
}

}  // namespace

absl::StatusOr<Schedule> VHalf(const ScheduleShape& shape) {
  return Repeat("v-half",
                {.forward_down = 1, .forward_up = 2, .backward_down = 1, .backward_up = 2}, shape);
}

absl::StatusOr<Schedule> VMin(const ScheduleShape& shape) {
  return Repeat("v-min", {.forward_down = 1, .forward_up = 1, .backward_down = 1, .backward_up = 1},
                shape);
}

}  // namespace stagecoach::schedule
