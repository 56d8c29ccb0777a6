#ifndef STAGECOACH_SCHEDULE_TRANSFORMS_TRANSFER_GROUPS_H_
#define STAGECOACH_SCHEDULE_TRANSFORMS_TRANSFER_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The groups in which a lowered schedule is performed under Transfers::kGrouped, numbered over all
// ranks: those of rank 0 in the order of its list, then those of rank 1, and so on. A collective is
// a group by itself. Pre-condition: ActionTable::Build accepts the schedule.
class TransferGroups {
 public:
  static constexpr int32_t kNone = -1;

  // Consecutive actions of a list.
  struct Group {
    Rank rank;
    size_t begin = 0;  // positions in its list
    size_t end = 0;
  };

  explicit TransferGroups(const Schedule& schedule);

  const std::vector<Group>& all() const { return groups_; }
  // The groups of `rank` are those from begin_of(rank) up to, but not including, end_of(rank).
  int32_t begin_of(Rank rank) const { return begin_[static_cast<size_t>(rank.value())]; }
  int32_t end_of(Rank rank) const { return begin_[static_cast<size_t>(rank.value()) + 1]; }
  // Returns the group of an action; kNone if it is in none.
  int32_t At(Rank rank, int32_t position) const {
    return group_at_[static_cast<size_t>(rank.value())][static_cast<size_t>(position)];
  }

 private:
  std::vector<Group> groups_;
  std::vector<int32_t> begin_;                  // index: rank; one more for the end
  std::vector<std::vector<int32_t>> group_at_;  // index: rank, position
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRANSFORMS_TRANSFER_GROUPS_H_
