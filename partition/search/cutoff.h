#ifndef STAGECOACH_PARTITION_SEARCH_CUTOFF_H_
#define STAGECOACH_PARTITION_SEARCH_CUTOFF_H_

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

// Whether a search is to go on. Asked where it could be left; from the first time on that it says
// no, it keeps to that, so that whatever was left out is known to have been. Not thread-safe.
class Cutoff {
 public:
  // No end. Nor is there one for searches that are given none.
  Cutoff() = default;
  // `limits` must outlive it.
  explicit Cutoff(const SearchLimits& limits) : limits_(&limits) {}

  bool IsReached() {
    if (limits_ == nullptr || !status_.ok()) return !status_.ok();
    if (limits_->is_cancelled != nullptr && limits_->is_cancelled()) {
      status_ = absl::CancelledError("the search was stopped");
    } else if (limits_->deadline != absl::InfiniteFuture() && absl::Now() >= limits_->deadline) {
      status_ = absl::DeadlineExceededError("the time of the search was over");
    }
    return !status_.ok();
  }

  // OK unless IsReached() has said so: then Cancelled or DeadlineExceeded.
  const absl::Status& status() const { return status_; }
  bool WasReached() const { return !status_.ok(); }

 private:
  const SearchLimits* limits_ = nullptr;
  absl::Status status_;
};

// Whether a status is that of a Cutoff.
inline bool IsCutShort(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CUTOFF_H_
