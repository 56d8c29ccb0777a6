#ifndef STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_
#define STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/generators.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// What generators share; not part of the public interface.

// The placement of the generator called `name`, and no actions yet. InvalidArgument if the shape is
// none that any generator takes, or has another number of chunks than this one has.
absl::StatusOr<Schedule> EmptySchedule(absl::string_view name, const ScheduleShape& shape);

// The reason why the schedule called `name` cannot have this shape, as InvalidArgument.
absl::Status Refuse(absl::string_view name, absl::string_view reason);

// Adds actions of one rank; each operation of each chunk goes through the micro-batches in order.
class RankWriter {
 public:
  RankWriter(Schedule& schedule, Rank rank);

  // The next micro-batch of the operation. Pre-condition: there is one.
  void Add(Op op, int chunk);
  // F of one chunk, and B or BW of another, as one overlapped operation.
  void AddOverlapped(int forward_chunk, Op backward, int backward_chunk);
  // How many of the operation there are so far; a BW counts as B and as W.
  int count(Op op, int chunk) const;

 private:
  MicroBatch Next(Op op, int chunk);

  struct Counts {
    int forward = 0;
    int backward_input = 0;
    int backward_weight = 0;
  };
  std::vector<Action>& list_;
  const std::vector<StageId> stages_;  // index: chunk
  std::vector<Counts> counts_;         // index: chunk
};

// Takes out what works on micro-batches from `micro_batches` on. An order that is right for many is
// right for the first few of them.
void KeepFirst(int micro_batches, Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_
