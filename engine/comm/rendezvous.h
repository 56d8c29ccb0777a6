#ifndef STAGECOACH_ENGINE_COMM_RENDEZVOUS_H_
#define STAGECOACH_ENGINE_COMM_RENDEZVOUS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "engine/comm/launch.h"

namespace stagecoach::engine {

// Returns whether an error is about another rank, which has failed, is gone or does not answer, as
// are errors of a rendezvous that name a rank: nothing is wrong here, and another try may succeed.
bool IsOfAnotherRank(const absl::Status& status);
// Marks the status as such.
absl::Status OfAnotherRank(absl::Status status);

// Calls `notify` with the missing ranks, once, if a wait for them lasts longer than `at`.
class LateNotice {
 public:
  LateNotice(base::Deadline at, std::function<void(const std::vector<int>& missing)> notify)
      : at_(at), notify_(std::move(notify)) {}

  base::Deadline at() const { return at_; }
  bool IsDue() const { return !is_given_ && at_.Expired(); }
  void Give(const std::vector<int>& missing) {
    is_given_ = true;
    notify_(missing);
  }

 private:
  base::Deadline at_;
  std::function<void(const std::vector<int>& missing)> notify_;
  bool is_given_ = false;
};

// A small store of texts that the processes of one launch share before they have any other
// connection, and next to it: the name of an NCCL group, the status of each rank, a few numbers.
// Keys have 1 to 256 bytes, values any up to 1 MiB; each key is set once.
//
// Every wait has a deadline (DeadlineExceeded). Unavailable: rank 0 does not answer, which is known
// a second after the deadline; or a rank that must still come has left instead, or was killed. The
// tcp place notices both at once; the file place cannot see that a rank was killed, and waits for
// the deadline. Aborted: a rank has reported that it has failed (Fail), which ends all waits. To be
// used by one thread at a time.
//
// Rank 0's rendezvous is the last to go: its destructor waits until the others that have connected
// have destroyed theirs, since they may still be reading, but for at most kLongestFarewell and half
// the deadline with which it has connected, and after a failure for kFarewellOfTheFailed, during
// which (tcp place) late ranks may hear of it. So let the first use of a rendezvous be an AllGather
// or a Barrier: after it, no rank can be too late.
class Rendezvous {
 public:
  static constexpr int64_t kMaxKeyBytes = 256;
  static constexpr int64_t kMaxValueBytes = int64_t{1} << 20;
  static constexpr absl::Duration kLongestFarewell = absl::Seconds(5);
  static constexpr absl::Duration kFarewellOfTheFailed = absl::Seconds(1);

  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // The address by which the other ranks reach this one's host, as far as the place tells;
  // otherwise "".
  virtual std::string own_address() const { return ""; }

  // Sets a key. AlreadyExists if any rank has set it before. Keys must not begin with "gather/",
  // "alive/" or "pace/", nor be "failed".
  absl::Status Set(const std::string& key, const std::string& value, base::Deadline deadline);

  // Returns the value of the key, once a rank has set it.
  absl::StatusOr<std::string> Get(const std::string& key, base::Deadline deadline);

  // Returns every rank's text, by rank, once all have called it; the n-th call of one rank meets
  // the n-th of the others. Leaves nothing behind except what the last call needs, so that a long
  // run may repeat it. DeadlineExceeded names all ranks that have not arrived or, if some of them
  // show no sign of life, those; then the others are informed, as by Fail. Sends heartbeats
  // meanwhile.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& text,
                                                     base::Deadline deadline);

  // Waits until all ranks have called it: an AllGather without texts. `late` may be called up to
  // look_interval() after its time.
  absl::Status Barrier(base::Deadline deadline, LateNotice* late = nullptr);

  // Tells the others that this rank has failed, so that none continues to wait for it. Only the
  // first failure of the launch counts, later ones are not passed on. Best effort, since what has
  // failed may be the rendezvous itself.
  void Fail(const absl::Status& why, base::Deadline deadline);
  // Checks, without waiting for other ranks, why this one need not wait for the others any more.
  // Aborted, "rank 2 has failed: why": another rank has reported it. Unavailable: one was killed
  // (tcp place only), or the store does not answer. A rank that has left is no failure here: one
  // that has done its part may leave.
  absl::Status CheckOthers(base::Deadline deadline);

  // The interval at which each rank sends heartbeats, and checks on the others: all of them
  // together at most a thousand times a second.
  absl::Duration look_interval() const;
  // The duration for which FindUnresponsive listens.
  absl::Duration silence_interval() const { return look_interval() * 7 / 2; }
  // Shows that this rank is alive, and what it is doing: a few words without line breaks.
  absl::Status Heartbeat(const std::string& doing, base::Deadline deadline);
  // ShowPace shows the others how fast this rank works: a text without line breaks. ReadStepTimes
  // returns the last text of each, by rank, "" if it has shown none.
  absl::Status ShowPace(const std::string& step_time, base::Deadline deadline);
  absl::StatusOr<std::vector<std::string>> ReadStepTimes(base::Deadline deadline);
  // A rank that has sent no heartbeat for a while: stopped, hung or cut off.
  struct Silent {
    int rank;
    std::string last_seen;  // what it did then; empty if it never sent a heartbeat
  };
  // Returns these ranks, ascending, after silence_interval(), during which this one continues to
  // send heartbeats itself. Errors: those of CheckOthers, at once.
  absl::StatusOr<std::vector<Silent>> FindUnresponsive();

 protected:
  Rendezvous(int rank, int ranks, absl::Duration deadline)
      : rank_(rank), ranks_(ranks), deadline_(deadline) {}

  // True if this rank has failed, or another as far as is known here.
  bool failed() const { return failed_; }
  // The time for which rank 0 keeps the store open for the others once it no longer needs it
  // itself.
  absl::Duration farewell() const {
    return failed() ? kFarewellOfTheFailed : std::min(kLongestFarewell, deadline_ / 2);
  }

 private:
  // Operations that a place provides. Keys and values are within the limits.
  virtual absl::Status DoSet(const std::string& key, const std::string& value,
                             base::Deadline deadline) = 0;
  // Does the same, but replaces a value that may be there.
  virtual absl::Status DoReplace(const std::string& key, const std::string& value,
                                 base::Deadline deadline) = 0;
  // `from` is the rank that will set the key, or -1 if any may. With an expired deadline, this is a
  // test.
  virtual absl::StatusOr<std::string> DoGet(const std::string& key, int from,
                                            base::Deadline deadline) = 0;
  // Like DoGet, but does not wait for the key: NotFound if no rank has set it. `deadline` is the
  // answer's.
  virtual absl::StatusOr<std::string> DoLook(const std::string& key, base::Deadline deadline) = 0;
  // Returns, by rank, the value of the key made of `prefix` and the rank, empty if it is not set.
  // Never waits.
  virtual absl::StatusOr<std::vector<std::string>> DoLookAtAll(const std::string& prefix,
                                                               base::Deadline deadline) = 0;
  virtual absl::Status DoRemove(const std::string& key, base::Deadline deadline) = 0;

  absl::StatusOr<std::vector<std::string>> Gather(const std::string& text, base::Deadline deadline,
                                                  LateNotice* late);
  absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& text,
                                                       base::Deadline deadline, LateNotice* late);
  // Returns the rank's text of a gather: DoGet with heartbeats.
  absl::StatusOr<std::string> Await(int64_t gather, int from, base::Deadline deadline,
                                    LateNotice* late);
  // Returns the ranks from `first` on that have not come to a gather.
  absl::StatusOr<std::vector<int>> MissingFrom(int64_t gather, int first, base::Deadline deadline);
  // Returns the error of a gather at its deadline.
  absl::Status ExplainMissing(std::vector<int> missing);

  int rank_;
  int ranks_;
  absl::Duration deadline_;
  bool failed_ = false;
  int64_t gathers_ = 0;
  int64_t signs_ = 0;
  std::string doing_;  // as last shown
};

// Connects this process with the store at launch.rendezvous. Returns once the store answers this
// rank; other ranks may still be missing. `late` is called for rank 0, if that does not answer.
//
//   "tcp://host:port"  a thread of rank 0 listens at that port of its host; the
//       others connect, and retry until it is there. On loopback only if the host is
//       "localhost" or a loopback address, otherwise on all interfaces. Nothing is encrypted:
//       for hosts that trust each other's network, like NCCL. Gloo, which is used for the file
//       place, has no such store (in Debian 12: file, hash table, Redis). The resolution of the
//       host's name keeps the resolver's own time limit.
//   "file:/folder"  Gloo's file store, in a folder that all ranks see. Each launch has a subfolder
//       there, named for its id, that only its user may enter and that rank 0 removes at the end.
//       AlreadyExists also if a launch of the same id, or without one, was killed there and its
//       subfolder is still there: the message tells to remove it. Looks for what it waits for every
//       10 ms.
//
// InvalidArgument: the place cannot be read, or is empty: then the message says what to set.
// DeadlineExceeded: the store did not answer; names rank 0's address. AlreadyExists: this rank is
// there already, so two processes claim it. FailedPrecondition: the store is that of another
// launch, or of another number of ranks.
absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectRendezvous(const Launch& launch,
                                                              absl::Duration deadline,
                                                              LateNotice* late = nullptr);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_RENDEZVOUS_H_
