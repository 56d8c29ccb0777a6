#ifndef STAGECOACH_ENGINE_COMM_VOTE_H_
#define STAGECOACH_ENGINE_COMM_VOTE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/comm/rendezvous.h"

namespace stagecoach::engine {

// Lets all processes of a run do something at the same place, such as stop or save, once any of
// them wants it, and tells all of them why. All ask at the same places, say before each step; they
// vote at the first two of them, and from then on about once per interval: at each vote rank 0
// decides, from the time that the last places took, at which place the next one is. A vote is an
// AllGather of the rendezvous; other places cost nothing. Not thread-safe.
class Vote {
 public:
  struct Options {
    std::function<int()> wanted;  // why this process wants it, such as a signal; 0: it does not
    absl::Duration interval = absl::Milliseconds(500);
    absl::Duration deadline = absl::Minutes(5);  // per vote
  };

  // `rendezvous` outlives the vote. Null: there is one process, which decides alone at each place.
  Vote(Rendezvous* rendezvous, Options options)
      : rendezvous_(rendezvous), options_(std::move(options)) {}

  // Returns true on all ranks at the same place, and from then on, if any wanted it before the last
  // vote. Errors: those of AllGather.
  absl::StatusOr<bool> Passes();
  // Once it has passed: the greatest of the reasons, which is the same on all ranks.
  int reason() const { return reason_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Returns the number of places from this one to the next vote.
  int64_t ProposeNext();

  Rendezvous* const rendezvous_;
  const Options options_;
  int reason_ = 0;
  int64_t places_ = 0;     // since the last vote
  int64_t next_vote_ = 0;  // index among them of the next vote
  std::optional<Clock::time_point> last_vote_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_VOTE_H_
