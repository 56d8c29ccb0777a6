#ifndef STAGECOACH_ENGINE_TRANSPORT_TRANSPORT_H_
#define STAGECOACH_ENGINE_TRANSPORT_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "kernels/tensor.h"
#include "schedule/action.h"

namespace stagecoach::engine {

using schedule::MicroBatch;
using schedule::Rank;
using schedule::StageId;

// What a tensor on its way between two ranks is: both ends state it, and a difference is an error.
struct Message {
  enum class Kind : uint8_t { kActivation, kGradient };
  Kind kind = Kind::kActivation;
  StageId boundary;  // the earlier of the two neighbouring stages
  MicroBatch micro_batch;

  friend bool operator==(const Message&, const Message&) = default;
};
std::string ToString(const Message& message);  // "activation of stage 1, micro-batch 3"

// One rank's end of a group of ranks that exchange tensors. Between an ordered pair of ranks,
// messages are matched in the order in which they are posted. Nothing is buffered: a message moves
// once both its ends are posted, from the sender's memory to the receiver's.
//
// Posts never wait. Each wait has a deadline and fails with DeadlineExceeded naming what it waited
// for, or, once any rank has called Abort, with the reason given there. Used by one thread, except
// Abort.
class Transport {
 public:
  // A posted send or receive.
  struct Ticket {
    int32_t lane = -1;  // which ordered pair of ranks; -1: nothing
    uint32_t index = 0;
  };

  virtual ~Transport() = default;

  virtual Rank rank() const = 0;

  // The tensor's memory must stay as it is until the ticket has been waited for. ResourceExhausted:
  // too many posts are outstanding. Internal: the other end's post at the same place of the order
  // is another message or size.
  virtual absl::StatusOr<Ticket> PostSend(Rank to, const Message& message,
                                          const kernels::Tensor& tensor) = 0;
  virtual absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                             const kernels::Tensor& tensor) = 0;

  // Until the receiver's memory has the data (either end). An empty ticket is done.
  virtual absl::Status Wait(const Ticket& ticket, base::Deadline deadline) = 0;

  // When the receiver's memory had the data. Pre-condition: the ticket is not empty and has been
  // waited for, and no max_outstanding posts of its direction came after it.
  virtual std::chrono::steady_clock::time_point DeliveredAt(const Ticket& ticket) = 0;

  // Every rank contributes `mine`, all of them of equal size; `all` gets them in order of rank.
  // Every rank must call it.
  virtual absl::Status AllGather(absl::Span<const double> mine, absl::Span<double> all,
                                 base::Deadline deadline) = 0;

  // Ends all present and later waits of all ranks with `reason` (the first one given). Thread-safe.
  virtual void Abort(const absl::Status& reason) = 0;
};

struct InProcessOptions {
  int ranks = 1;
  int max_outstanding = 1;  // posts of one direction of one pair of ranks
  int max_gather = 0;       // doubles that a rank contributes to an AllGather
};

// A group of ranks that are threads of this process. Whoever posts second copies, straight from the
// sender's buffer to the receiver's; waiting threads sleep in the kernel after a short spin. Index:
// rank. Allocates nothing after creation.
std::vector<std::unique_ptr<Transport>> CreateInProcessTransports(const InProcessOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRANSPORT_TRANSPORT_H_
