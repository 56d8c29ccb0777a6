#ifndef STAGECOACH_KERNELS_COMMUNICATOR_H_
#define STAGECOACH_KERNELS_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace stagecoach::kernels {

struct CommunicatorOptions {
  std::string id;  // the same for all ranks of the group: made by kernels/cuda_backend.h
  int ranks = 1;
  int rank = 0;
  // Ranks with which this one exchanges tensors: connections to them are opened at the start, in
  // both directions, so that no step waits for that.
  std::vector<int> peers;
  absl::Duration deadline = absl::Minutes(5);  // of each wait for other ranks
  int max_groups = 1;                          // groups that are launched between two calls of
                                               // Restart
  // Called now and then, if set, while the host waits for other ranks; an error ends the wait.
  std::function<absl::Status()> poll;
};

// One rank's end of a group of devices, in one process or several, that exchange tensors directly.
// Transfers run in groups, concurrently with the work of the device's stream, one group after the
// other. A group blocks until its peers have reached the other ends of its transfers; assume
// neither buffering nor any order in which the transfers of a group wait for one another. So what
// two ranks exchange in one group of either must be in one group of the other, and all ranks must
// launch their groups in an order without cycles (schedule/verify/validator.h, rule 6).
//
// Only jobs of the device's stream may call it, except for Abort. Errors name the peer and the
// library's reason. The destructor waits for the other ranks to finish as well, for at most half
// the deadline and kLongestGoodbye; after an error it does not.
class Communicator {
 public:
  // The number of a launched group, counted from the last Restart.
  using Group = int32_t;

  static constexpr absl::Duration kLongestGoodbye = absl::Seconds(10);
  virtual ~Communicator() = default;

  // Adds a transfer to the group that is being collected.
  virtual absl::Status Send(int to, const void* data, int64_t bytes) = 0;
  virtual absl::Status Receive(int from, void* data, int64_t bytes) = 0;
  // Adds a sum over all ranks, in place, to the group, which then has no transfers. All ranks do so
  // in the same order, with equal numbers of elements.
  virtual absl::Status Sum(float* data, int64_t elements) = 0;
  // Launches what was collected: it runs after all work issued to the device's stream so far, and
  // after all earlier groups.
  virtual absl::StatusOr<Group> Launch() = 0;
  // Makes later work of the device's stream wait for the group.
  virtual absl::Status ComeAfter(Group group) = 0;

  // Returns how many groups are known to be done; may be called after a failure.
  virtual int32_t groups_done() const = 0;
  // Returns when the group was done. Pre-condition: the stream has finished after ComeAfter(group).
  virtual absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(Group group) const = 0;
  // Counts groups from 0 again. Pre-condition: the stream has finished after all of them.
  virtual void Restart() = 0;

  // Returns the first asynchronous error of the group, if any; never waits.
  virtual absl::Status Poll() = 0;
  // Gives up: transfers that wait for peers end, and every later call fails. Returns within
  // kLongestAbort, even if a peer has stopped without ending. Thread-safe, but no other call of
  // this communicator may be in progress.
  static constexpr absl::Duration kLongestAbort = absl::Milliseconds(500);
  virtual void Abort() = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_COMMUNICATOR_H_
