#ifndef STAGECOACH_SCHEDULE_GENERATORS_H_
#define STAGECOACH_SCHEDULE_GENERATORS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// The shape a generator fills. Refused by every generator: p < 1, m < 1, and p * m above
// kMaxPasses, which no machine could hold.
struct ScheduleShape {
  int ranks = 1;          // p >= 1
  int micro_batches = 1;  // m >= 1
};
inline constexpr int kMaxPasses = 1 << 24;

// A generator writes a compute schedule for a shape, or refuses it with InvalidArgument and the
// reason. The names of the generated schedules are those of the generators.
struct Generator {
  absl::string_view name;
  absl::string_view summary;  // one line, for --help
  absl::StatusOr<Schedule> (*generate)(const ScheduleShape& shape);
};

// All training schedules, in the order in which they should be listed.
absl::Span<const Generator> Generators();

// The schedule called `name`. NotFound lists the known names and the nearest one; InvalidArgument
// if the shape is refused.
absl::StatusOr<Schedule> Generate(absl::string_view name, const ScheduleShape& shape);

// "gpipe". Rank r: F of all micro-batches, then BW of all of them, both in order 0, 1, 2, ...
// (GPipe, Huang et al. 2019, runs the backward pass in reverse; the bubble and the stash are the
// same, and ours keeps the order of summation.)
absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape);

// "1f1b". Rank r: w = min(p-1-r, m) warm-up F; m-w times (F, BW); w times BW. Stash at most
// min(p-r, m) micro-batches (PipeDream-Flush, Narayanan et al. 2021).
absl::StatusOr<Schedule> OneFOneB(const ScheduleShape& shape);

// "forward". Evaluation: F of all micro-batches on every rank. Not in Generators(): nothing can be
// trained with it.
absl::StatusOr<Schedule> ForwardOnly(const ScheduleShape& shape);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_GENERATORS_H_
