#include "engine/comm/vote.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// A rank's ballot: "15 20" means that it wants it for the reason 15, and that the next vote might
// be after 20 places.
struct Ballot {
  int wants = 0;
  int64_t next = 0;
};

std::string ToText(const Ballot& ballot) { return absl::StrCat(ballot.wants, " ", ballot.next); }

absl::StatusOr<Ballot> FromText(absl::string_view text) {
  Ballot ballot;
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  if (!absl::SimpleAtoi(numbers.first, &ballot.wants) ||
      !absl::SimpleAtoi(numbers.second, &ballot.next) || ballot.next < 1) {
    return absl::FailedPreconditionError(
        "the processes are not at the same step: they train on different data or for different "
        "numbers of epochs");
  }
  return ballot;
}

}  // namespace

absl::StatusOr<bool> Vote::Passes() {
  if (reason_ != 0) return true;
  if (rendezvous_ == nullptr) {
    reason_ = options_.wanted();
    return reason_ != 0;
  }
  if (places_++ < next_vote_) return false;
  const Ballot own = {.wants = options_.wanted(), .next = ProposeNext()};
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   rendezvous_->AllGather(ToText(own), base::Deadline::After(options_.deadline)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ASSIGN_OR_RETURN(const Ballot theirs, FromText(all[rank]));
    reason_ = std::max(reason_, theirs.wants);
    if (rank == 0) next_vote_ = theirs.next - 1;
  }
  places_ = 0;
  return reason_ != 0;
}

int64_t Vote::ProposeNext() {
  // Limits the growth: places to come may be slower than past ones, as steps are after an
  // evaluation.
  constexpr double kGrowth = 4.0;
  const Clock::time_point now = Clock::now();
  const std::optional<Clock::time_point> last = std::exchange(last_vote_, now);
  if (!last.has_value()) return 1;  // the duration of a place is not known yet
  const double seconds = std::chrono::duration<double>(now - *last).count();
  const auto passed = static_cast<double>(places_);
  const double fitting =
      passed * absl::ToDoubleSeconds(options_.interval) / std::max(seconds, 1e-9);
  return std::max<int64_t>(1, std::llround(std::min(fitting, kGrowth * passed)));
}

}  // namespace stagecoach::engine
