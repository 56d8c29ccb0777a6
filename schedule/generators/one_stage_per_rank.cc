// Schedules with one stage on every rank: GPipe, 1F1B, ZB-H1, ZB-H2 of generators.h.

#include <algorithm>

#include "base/status_macros.h"
#include "schedule/generators.h"
#include "schedule/generators/generator_parts.h"

namespace stagecoach::schedule {

absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("gpipe", shape));
  for (Rank rank(0); rank.value() < shape.ranks; ++rank) {
    RankWriter writer(schedule, rank);
    for (int i = 0; i < shape.micro_batches; ++i) writer.Add(Op::kForward, 0);
    for (int i = 0; i < shape.micro_batches; ++i) writer.Add(Op::kBackward, 0);
  }
  return schedule;
}

absl::StatusOr<Schedule> OneFOneB(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("1f1b", shape));
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.ranks; ++r) {
    RankWriter writer(schedule, Rank(r));
    const int warm_up = std::min(shape.ranks - 1 - r, m);
    for (int i = 0; i < warm_up; ++i) writer.Add(Op::kForward, 0);
    for (int i = 0; i < m; ++i) {
      if (i + warm_up < m) writer.Add(Op::kForward, 0);
      writer.Add(Op::kBackward, 0);
    }
  }
  return schedule;
}

absl::StatusOr<Schedule> ZeroBubbleH1(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("zb-h1", shape));
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.ranks; ++r) {
    RankWriter writer(schedule, Rank(r));
    const int warm_up = std::min(shape.ranks - 1 - r, m);
    for (int i = 0; i < warm_up; ++i) writer.Add(Op::kForward, 0);
    for (int i = 0; i < m; ++i) {
      if (i + warm_up < m) writer.Add(Op::kForward, 0);
      writer.Add(Op::kBackwardInput, 0);
      if (i >= r) writer.Add(Op::kBackwardWeight, 0);
    }
    while (writer.count(Op::kBackwardWeight, 0) < m) writer.Add(Op::kBackwardWeight, 0);
  }
  return schedule;
}

absl::StatusOr<Schedule> ZeroBubbleH2(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("zb-h2", shape));
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.ranks; ++r) {
    RankWriter writer(schedule, Rank(r));
    const int warm_up = std::min(2 * (shape.ranks - r) - 1, m);
    for (int i = 0; i < warm_up; ++i) writer.Add(Op::kForward, 0);
    for (int i = 0; i < m; ++i) {
      writer.Add(Op::kBackwardInput, 0);
      if (i >= 2 * r) writer.Add(Op::kBackwardWeight, 0);
      if (i + warm_up < m) writer.Add(Op::kForward, 0);
    }
    while (writer.count(Op::kBackwardWeight, 0) < m) writer.Add(Op::kBackwardWeight, 0);
  }
  return schedule;
}

}  // namespace stagecoach::schedule
