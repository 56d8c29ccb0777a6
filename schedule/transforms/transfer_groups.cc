#include "schedule/transforms/transfer_groups.h"

#include <algorithm>

namespace stagecoach::schedule {

TransferGroups::TransferGroups(const Schedule& schedule) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.list_of(rank);
    begin_.push_back(static_cast<int32_t>(groups_.size()));
    std::vector<int32_t>& group_at = group_at_.emplace_back(list.size(), kNone);
    for (size_t i = 0; i < list.size();) {
      const bool transfers = IsTransfer(list[i].op);
      const size_t end = transfers ? EndOfGroup(list, i) : i + 1;
      if (transfers || IsCollective(list[i].op)) {
        std::fill(group_at.begin() + static_cast<ptrdiff_t>(i),
                  group_at.begin() + static_cast<ptrdiff_t>(end),
                  static_cast<int32_t>(groups_.size()));
        groups_.push_back({rank, i, end});
      }
      i = end;
    }
  }
  begin_.push_back(static_cast<int32_t>(groups_.size()));
}

}  // namespace stagecoach::schedule
