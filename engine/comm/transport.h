#ifndef STAGECOACH_ENGINE_COMM_TRANSPORT_H_
#define STAGECOACH_ENGINE_COMM_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "schedule/ir/action.h"

namespace stagecoach::engine {

using schedule::MicroBatch;
using schedule::Rank;
using schedule::StageId;

// Identifies a tensor in flight between two ranks: both ends state it, and a difference is an
// error.
struct Message {
  enum class Kind : uint8_t {
    kActivation,
    kGradient,
    kNorms,
    kResults,
    kAddends,
    kSums,
    kState,
    kTied,
    kPartSums,
  };
  Kind kind = Kind::kActivation;
  // For an activation or gradient, the earlier of the two neighboring stages; for addends, sums and
  // tied gradients, the stage whose gradients they are; for sums of parts, the round.
  StageId stage;
  // For addends, sums and tied gradients, the part of the gradients; for trained state, the piece.
  MicroBatch micro_batch;

  friend bool operator==(const Message&, const Message&) = default;
};
std::string ToString(const Message& message);  // "activation of stage 1, micro-batch 3"

// One rank's end of a group of ranks that exchange tensors in the memory of their devices. Between
// an ordered pair of ranks, messages are matched in the order in which they are posted. Nothing is
// buffered: a message moves once both its ends are posted, from the sender's memory to the
// receiver's.
//
// A transfer comes after the work that was issued to the rank's stream before it was posted, and
// later work comes after it once it has been waited for. So the host need not wait: on an
// accelerator, a wait may return as soon as the device knows what to wait for. Transfers are known
// to be done once the stream has finished.
//
// Posts never wait. Each wait has a deadline and fails with DeadlineExceeded naming what it waited
// for, or, once any rank has called Abort, with its reason. Used by jobs of the stream of the
// rank's device, except Abort.
class Transport {
 public:
  // A posted send or receive.
  struct Ticket {
    int32_t lane = -1;  // the ordered pair of ranks; -1: nothing
    uint32_t index = 0;
  };

  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int ranks() const = 0;
  // True if what is flushed occupies the rank's GPU until the other ends arrive. If one GPU has two
  // such transports, all ranks must flush in one order, or they may wait for one another forever.
  virtual bool occupies_gpu() const { return false; }

  // Post a transfer. The tensor's memory must not change until the ticket has been waited for.
  // ResourceExhausted: too many posts are outstanding. Internal: the other end's post at the same
  // place of the order is another message or size.
  virtual absl::StatusOr<Ticket> PostSend(Rank to, const Message& message,
                                          const kernels::Tensor& tensor) = 0;
  virtual absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                             const kernels::Tensor& tensor) = 0;

  // Sums tensors of all ranks of the group, of the same shape and float32, by the all-reduce of a
  // library: all get the sum, in place. The library chooses the order of additions. All ranks post
  // the same sums in the same order, and nothing else before the next Flush. Unimplemented: there
  // is no such library.
  virtual absl::StatusOr<Ticket> PostSum(const Message& message, const kernels::Tensor& tensor);

  // Starts what has been posted, which needs nothing more from this rank. What is posted between
  // two flushes may be performed as one group (schedule/ir/schedule.h, Transfers::kGrouped).
  virtual absl::Status Flush() = 0;

  // Orders later work of the rank's stream after the transfer (at either end). An empty ticket is
  // done.
  virtual absl::Status Wait(const Ticket& ticket, base::Deadline deadline) = 0;

  // Returns when the receiver's memory had the data. Pre-condition: the ticket is not empty and has
  // been waited for, the stream has finished since, and no Restart or max_outstanding posts of its
  // direction came after it.
  virtual absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(
      const Ticket& ticket) = 0;

  // Called before the first post of a run of a schedule. Pre-condition: the stream has finished
  // after the last run.
  virtual void Restart() = 0;

  // Returns the first error that has occurred meanwhile: of the group, or the reason of an Abort.
  // Never waits.
  virtual absl::Status Poll() = 0;

  // Ends all present and later waits of all ranks with `reason` (that of the first call).
  // Thread-safe.
  virtual void Abort(const absl::Status& reason) = 0;

  // Bytes of the sends that were posted since creation, and for each sum what a ring sends, which
  // is not counted but computed. Thread-safe.
  int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

 protected:
  void CountSend(const kernels::Tensor& tensor) { Count(tensor.bytes()); }
  void CountSum(const kernels::Tensor& tensor) {
    Count(tensor.bytes() * 2 * (ranks() - 1) / ranks());
  }

 private:
  void Count(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  std::atomic<int64_t> sent_bytes_{0};
};

struct InProcessOptions {
  std::vector<kernels::Device*>
      devices;              // of each rank, all of one kind; they outlive the transports
  int max_outstanding = 1;  // posts per direction and pair of ranks
  // The ranks with which each rank exchanges tensors. Empty: every rank with all others.
  std::vector<std::vector<int>> peers;
};

// Creates a group of ranks that are threads of this process. The side that posts second has the
// data copied, directly from the sender's buffer to the receiver's (kernels/peer_copy.h). What has
// been posted needs no flush. A wait lasts until the other end has been posted; waiting threads
// sleep in the kernel after a short spin. Index: rank. Everything that messages need is created
// here, so that errors are known before the first message, and no message waits for it. A post to a
// rank that is no peer: InvalidArgument.
absl::StatusOr<std::vector<std::unique_ptr<Transport>>> CreateInProcessTransports(
    const InProcessOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_TRANSPORT_H_
