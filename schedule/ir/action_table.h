#ifndef STAGECOACH_SCHEDULE_IR_ACTION_TABLE_H_
#define STAGECOACH_SCHEDULE_IR_ACTION_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"
#include "schedule/ir/violation.h"

namespace stagecoach::schedule {

// Holds where in its rank's list each action of a schedule stands. Dense: one look-up is two loads.
// Immutable once built; not part of the public interface.
class ActionTable {
 public:
  static constexpr int32_t kNowhere = -1;

  // Builds the table of all ranks, or of `rank` alone. Fails if the schedule has no stage or no
  // micro-batch, a stage is placed on a rank that does not exist, or, on a rank of the table, an
  // action appears twice (a W next to a BW counts as twice), names a stage of another rank, a group
  // without the rank, a micro-batch outside the schedule or a transfer to a neighbor that is absent
  // or on the same rank, an overlapped pair is not a valid one, a group's ranks are not ascending
  // ranks of the schedule, or there are fewer actions than forward passes (so memory is linear in
  // the actions). All errors are FailedPrecondition; FindViolation describes them in parts.
  static absl::StatusOr<ActionTable> Build(const Schedule& schedule);
  static absl::StatusOr<ActionTable> BuildForRank(const Schedule& schedule, Rank rank);
  // Like Build; `violation` says what is wrong if the result is empty.
  static std::optional<ActionTable> Build(const Schedule& schedule, Violation& violation);

  // Returns the position of the action, or kNowhere. A BW is found as B and as W. Pre-condition:
  // stage and micro-batch are in range, the stage's rank is in the table, and the operation is not
  // BW.
  int32_t Find(Op op, StageId stage, MicroBatch micro_batch) const {
    return places_[CellOf(stage, micro_batch)][static_cast<size_t>(op)];
  }
  int32_t Find(const Action& action) const {
    return Find(action.op, action.stage, action.micro_batch);
  }
  int32_t FindReduce(StageId stage) const { return reduces_[static_cast<size_t>(stage.value())]; }
  int32_t FindStep(StageId stage) const { return steps_[static_cast<size_t>(stage.value())]; }
  // Returns the position of a collective on the group's rank number `member`. Pre-condition: that
  // rank is in the table.
  int32_t FindCollective(Op op, GroupId group, size_t member) const {
    return collectives_[CellOf(group, member)][CollectiveIndex(op)];
  }

 private:
  using Cell = std::array<int32_t, kNumMicroBatchOps>;

  explicit ActionTable(const Schedule& schedule);

  // Returns false if something is wrong, which `violation` then describes.
  bool AddRank(const Schedule& schedule, Rank rank, Violation& violation);
  bool AddAction(const Schedule& schedule, Rank rank, int32_t position, Violation& violation);

  size_t CellOf(StageId stage, MicroBatch micro_batch) const {
    return first_cell_[static_cast<size_t>(stage.value())] +
           static_cast<size_t>(micro_batch.value());
  }

  size_t CellOf(GroupId group, size_t member) const {
    return first_member_[static_cast<size_t>(group.value())] + member;
  }

  std::vector<size_t> first_cell_;                                   // index: stage
  std::vector<int32_t> reduces_;                                     // index: stage
  std::vector<int32_t> steps_;                                       // index: stage
  std::vector<Cell> places_;                                         // index: CellOf
  std::vector<size_t> first_member_;                                 // index: group
  std::vector<std::array<int32_t, kNumCollectiveOps>> collectives_;  // index: CellOf
};

// Returns true if an action on `rank` names something that does not exist; `why`, if not null, then
// says what.
bool IsMisnamed(const Schedule& schedule, Rank rank, const Action& action,
                std::string* why = nullptr);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IR_ACTION_TABLE_H_
