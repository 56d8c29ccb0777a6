#ifndef STAGECOACH_SCHEDULE_ACTION_TABLE_H_
#define STAGECOACH_SCHEDULE_ACTION_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// Says where in its rank's list each action of a schedule stands. Dense: one look-up is two loads.
// Immutable once built; not part of the public interface.
class ActionTable {
 public:
  static constexpr int32_t kNowhere = -1;

  // The table of all ranks, or of `rank` alone. FailedPrecondition if the schedule has no stage or
  // no micro-batch, a stage is placed on a rank it does not have, or, on a rank of the table, an
  // action appears twice (a W next to a BW counts as twice), names a stage of another rank, a
  // micro-batch outside the schedule or a transfer to a neighbour that is absent or on the same
  // rank, or there are fewer actions than forward passes (so memory is linear in the actions).
  static absl::StatusOr<ActionTable> Build(const Schedule& schedule);
  static absl::StatusOr<ActionTable> BuildForRank(const Schedule& schedule, Rank rank);

  // Position of the action, or kNowhere. A BW is found as B and as W. Pre-condition: stage and
  // micro-batch are in range, the stage's rank is in the table, and the operation is not BW.
  int32_t Find(Op op, StageId stage, MicroBatch micro_batch) const {
    return places_[CellOf(stage, micro_batch)][static_cast<size_t>(op)];
  }
  int32_t Find(const Action& action) const {
    return Find(action.op, action.stage, action.micro_batch);
  }
  int32_t FindStep(StageId stage) const { return steps_[static_cast<size_t>(stage.value())]; }

 private:
  // kStep is the last operation; it has no micro-batch and therefore no place in a cell.
  using Cell = std::array<int32_t, kNumOps - 1>;

  explicit ActionTable(const Schedule& schedule);

  absl::Status AddRank(const Schedule& schedule, Rank rank);
  absl::Status AddAction(const Schedule& schedule, Rank rank, int32_t position);

  size_t CellOf(StageId stage, MicroBatch micro_batch) const {
    return first_cell_[static_cast<size_t>(stage.value())] +
           static_cast<size_t>(micro_batch.value());
  }

  std::vector<size_t> first_cell_;  // index: stage
  std::vector<int32_t> steps_;      // index: stage
  std::vector<Cell> places_;        // index: CellOf
};

// "rank 1, position 7 (stage 1 SEND_F micro-batch 3)".
std::string Where(const Schedule& schedule, Rank rank, int32_t position);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_ACTION_TABLE_H_
