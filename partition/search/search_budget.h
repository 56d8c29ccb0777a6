#ifndef STAGECOACH_PARTITION_SEARCH_SEARCH_BUDGET_H_
#define STAGECOACH_PARTITION_SEARCH_SEARCH_BUDGET_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

// Decides whether a search continues. Asked wherever the search could end; once it has said no, it
// always says no, so that whatever was left out is known to have been. Not thread-safe.
class SearchBudget {
 public:
  // Never ends, as for searches without limits.
  SearchBudget() = default;
  // `limits` must outlive it.
  explicit SearchBudget(const SearchLimits& limits) : limits_(&limits) {}

  bool IsReached() {
    if (limits_ == nullptr || !status_.ok()) return !status_.ok();
    if (limits_->is_cancelled != nullptr && limits_->is_cancelled()) {
      status_ = absl::CancelledError("the search was stopped");
    } else if (has_deadline() && absl::Now() >= limits_->deadline - reserved_) {
      status_ = absl::DeadlineExceededError("the time of the search was over");
    }
    return !status_.ok();
  }

  bool has_deadline() const {
    return limits_ != nullptr && limits_->deadline != absl::InfiniteFuture();
  }

  // Moves the deadline earlier until Release(), by a share of the time that is left now, which
  // remains for what follows. Without a deadline, does nothing.
  void Reserve(double share) {
    if (!has_deadline()) return;
    reserved_ = share * std::max(limits_->deadline - absl::Now(), absl::ZeroDuration());
  }
  // Returns true if the earlier deadline was reached. That alone no longer counts.
  bool Release() {
    reserved_ = absl::ZeroDuration();
    const bool was_reached = !status_.ok();
    if (absl::IsDeadlineExceeded(status_)) status_ = absl::OkStatus();
    return was_reached;
  }

  // OK unless IsReached() has returned true: then Cancelled or DeadlineExceeded.
  const absl::Status& status() const { return status_; }
  bool WasReached() const { return !status_.ok(); }

 private:
  const SearchLimits* limits_ = nullptr;
  absl::Duration reserved_ = absl::ZeroDuration();
  absl::Status status_;
};

// Returns true if a status is that of a SearchBudget.
inline bool IsCutShort(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_SEARCH_BUDGET_H_
