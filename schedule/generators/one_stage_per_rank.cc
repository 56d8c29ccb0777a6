// Schedules with one stage on every rank: GPipe, 1F1B, ZB-H1, ZB-H2 of generators.h.

#include <algorithm>

#include "base/status_macros.h"
#include "schedule/generators/generator_parts.h"
#include "schedule/generators/generators.h"

namespace stagecoach::schedule {
namespace {

void AddMissingWeights(int micro_batches, RankWriter& writer) {
  while (writer.count(Op::kBackwardWeight, 0) < micro_batches) {
    writer.Add(Op::kBackwardWeight, 0);
  }
}

// Writes for rank r: p - 1 - r times F, then F and `backward(writer, r, i)` in turn, i counting
// from 0; then the missing W.
template <typename Backward>
absl::StatusOr<Schedule> WarmUpThenAlternate(absl::string_view name, const ScheduleShape& shape,
                                             Backward backward) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule(name, shape));
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.ranks; ++r) {
    RankWriter writer(schedule, Rank(r));
    const int warm_up = std::min(shape.ranks - 1 - r, m);
    for (int i = 0; i < warm_up; ++i) writer.Add(Op::kForward, 0);
    for (int i = 0; i < m; ++i) {
      if (i + warm_up < m) writer.Add(Op::kForward, 0);
      backward(writer, r, i);
    }
    AddMissingWeights(m, writer);
  }
  return schedule;
}

}  // namespace

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
  return WarmUpThenAlternate("1f1b", shape,
                             [](RankWriter& writer, int, int) { writer.Add(Op::kBackward, 0); });
}

absl::StatusOr<Schedule> ZeroBubbleH1(const ScheduleShape& shape) {
  return WarmUpThenAlternate("zb-h1", shape, [](RankWriter& writer, int r, int i) {
    writer.Add(Op::kBackwardInput, 0);
    if (i >= r) writer.Add(Op::kBackwardWeight, 0);
  });
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
    AddMissingWeights(m, writer);
  }
  return schedule;
}

}  // namespace stagecoach::schedule
