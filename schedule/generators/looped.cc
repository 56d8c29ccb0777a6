// Schedules with several chunks per rank in a loop: interleaved 1F1B and looped BFS of
// generators.h.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/generators/generator_parts.h"
#include "schedule/generators/generators.h"

namespace stagecoach::schedule {

absl::StatusOr<Schedule> Interleaved(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("interleaved", shape));
  const int p = shape.ranks;
  const int m = shape.micro_batches;
  const int v = schedule.num_stages() / p;
  if (m % p != 0) {
    return Refuse("interleaved",
                  absl::StrCat("needs micro-batches divisible by ranks: ", m, " and ", p));
  }
  const int passes = m * v;
  for (int r = 0; r < p; ++r) {
    RankWriter writer(schedule, Rank(r));
    // Groups of p micro-batches go through all chunks, one after the other.
    const auto chunk_of = [&](int k) { return k % (p * v) / p; };
    const int warm_up = std::min(2 * (p - 1 - r) + (v - 1) * p, passes);
    for (int k = 0; k < warm_up; ++k) writer.Add(Op::kForward, chunk_of(k));
    for (int k = 0; k < passes; ++k) {
      if (k + warm_up < passes) writer.Add(Op::kForward, chunk_of(k + warm_up));
      writer.Add(Op::kBackward, v - 1 - chunk_of(k));
    }
  }
  return schedule;
}

absl::StatusOr<Schedule> LoopedBfs(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("looped-bfs", shape));
  const int v = schedule.num_stages() / shape.ranks;
  for (Rank rank(0); rank.value() < shape.ranks; ++rank) {
    RankWriter writer(schedule, rank);
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int i = 0; i < shape.micro_batches; ++i) writer.Add(Op::kForward, chunk);
    }
    for (int chunk = v - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < shape.micro_batches; ++i) writer.Add(Op::kBackward, chunk);
    }
  }
  return schedule;
}

}  // namespace stagecoach::schedule
