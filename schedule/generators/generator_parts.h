#ifndef STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_
#define STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/generators/generators.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Helpers that generators share; not part of the public interface.

// Returns the placement of the generator called `name`, without actions. InvalidArgument if no
// generator accepts the shape, or this one has another number of chunks.
absl::StatusOr<Schedule> EmptySchedule(absl::string_view name, const ScheduleShape& shape);

// Returns InvalidArgument with the reason why the schedule called `name` cannot have this shape.
absl::Status Refuse(absl::string_view name, absl::string_view reason);

// Adds actions to one rank; each operation of each chunk takes the micro-batches in order.
class RankWriter {
 public:
  RankWriter(Schedule& schedule, Rank rank);

  // Adds the operation on its next micro-batch. Pre-condition: there is one.
  void Add(Op op, int chunk);
  // Adds F of one chunk and B or BW of another, as one overlapped operation.
  void AddOverlapped(int forward_chunk, Op backward, int backward_chunk);
  // Returns how often the operation has been added; a BW counts as a B and as a W.
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

// Removes all actions on micro-batches from `micro_batches` on. An order that is right for many
// micro-batches is right for the first few of them.
void KeepFirst(int micro_batches, Schedule& schedule);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_GENERATORS_GENERATOR_PARTS_H_
