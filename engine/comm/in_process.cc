#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/system/futex.h"
#include "engine/comm/transport.h"
#include "kernels/peer_copy.h"

namespace stagecoach::engine {
namespace {

using kernels::Tensor;

// The messages from one rank to another. Message number i is in slot i % size.
struct Lane {
  struct Post {
    Message message;
    Tensor tensor;
  };
  struct Slot {
    Post send, receive;
    std::unique_ptr<kernels::PeerCopy> peer_copy;
    // 1 + number of the last message whose copy was issued through this slot.
    std::atomic<uint32_t> delivered{0};
  };

  base::Mutex mutex;
  std::vector<Slot> slots;                       // none if the two are no peers
  uint32_t sends ABSL_GUARDED_BY(mutex) = 0;     // posted so far
  uint32_t receives ABSL_GUARDED_BY(mutex) = 0;  // posted so far
};

// State that all ranks of a group share.
class Group {
 public:
  explicit Group(const InProcessOptions& options)
      : devices_(options.devices),
        ranks_(static_cast<int>(devices_.size())),
        lanes_(devices_.size() * devices_.size()),
        signals_(devices_.size()) {}

  // Creates the lanes of all messages, before the first.
  absl::Status Open(const InProcessOptions& options) {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int peer = 0; peer < ranks_; ++peer) {
        const auto is_peer = [&](const std::vector<int>& peers) {
          return std::find(peers.begin(), peers.end(), peer) != peers.end();
        };
        if (peer == rank) continue;
        if (!options.peers.empty() && !is_peer(options.peers[static_cast<size_t>(rank)])) continue;
        RETURN_IF_ERROR(OpenLane(rank, peer, options.max_outstanding));
        RETURN_IF_ERROR(OpenLane(peer, rank, options.max_outstanding));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Transport::Ticket> Post(bool is_send, Rank from, Rank to, const Message& message,
                                         const Tensor& tensor) {
    const int lane_index = from.value() * ranks_ + to.value();
    Lane& lane = lanes_[static_cast<size_t>(lane_index)];
    if (lane.slots.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", from.value(), " and rank ", to.value(), " are no peers: ", ToString(message)));
    }
    uint32_t index = 0;
    bool complete = false;
    {
      base::MutexLock lock(lane.mutex);
      uint32_t& own = is_send ? lane.sends : lane.receives;
      const uint32_t other = is_send ? lane.receives : lane.sends;
      index = own;
      Lane::Slot& slot = SlotOf(lane, index);
      const auto size = static_cast<uint32_t>(lane.slots.size());
      if (index >= size && slot.delivered.load(std::memory_order_acquire) + size < index + 1) {
        return absl::ResourceExhaustedError(absl::StrCat("more than ", size, " messages from rank ",
                                                         from.value(), " to rank ", to.value(),
                                                         " are outstanding"));
      }
      RETURN_IF_ERROR(is_send ? slot.peer_copy->SenderReady() : slot.peer_copy->ReceiverReady());
      (is_send ? slot.send : slot.receive) = {message, tensor};
      ++own;
      complete = other > index;
    }
    if (complete) RETURN_IF_ERROR(Deliver(from, to, index, SlotOf(lane, index)));
    return Transport::Ticket{lane_index, index};
  }

  absl::Status Wait(Rank rank, const Transport::Ticket& ticket, base::Deadline deadline) {
    if (ticket.lane < 0) return absl::OkStatus();
    Lane& lane = lanes_[static_cast<size_t>(ticket.lane)];
    const Lane::Slot& slot = SlotOf(lane, ticket.index);
    const auto done = [&] {
      return static_cast<int32_t>(slot.delivered.load(std::memory_order_acquire) -
                                  (ticket.index + 1)) >= 0;
    };
    const int from = ticket.lane / ranks_;
    const int to = ticket.lane % ranks_;
    const bool sends = from == rank.value();
    const absl::Status status = WaitFor(rank, deadline, done);
    if (status.ok()) {
      return sends ? slot.peer_copy->SenderContinues() : slot.peer_copy->ReceiverContinues();
    }
    if (!absl::IsDeadlineExceeded(status)) return status;
    const Message& message = sends ? slot.send.message : slot.receive.message;
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", rank.value(), " timed out waiting for rank ", sends ? to : from,
                     " to ", sends ? "take the " : "send the ", ToString(message)));
  }

  absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(
      const Transport::Ticket& ticket) {
    return SlotOf(lanes_[static_cast<size_t>(ticket.lane)], ticket.index).peer_copy->DoneAt();
  }

  absl::Status Poll() {
    if (!aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
    base::MutexLock lock(abort_mutex_);
    return abort_reason_;
  }

  int ranks() const { return ranks_; }

  void Abort(const absl::Status& reason) {
    {
      base::MutexLock lock(abort_mutex_);
      if (!abort_reason_.ok()) return;
      abort_reason_ = reason;
    }
    aborted_.store(true, std::memory_order_release);
    for (int r = 0; r < ranks_; ++r) Signal(Rank(r));
  }

 private:
  static Lane::Slot& SlotOf(Lane& lane, uint32_t index) {
    return lane.slots[index % lane.slots.size()];
  }

  absl::Status OpenLane(int from, int to, int max_outstanding) {
    Lane& lane = lanes_[static_cast<size_t>(from * ranks_ + to)];
    if (!lane.slots.empty()) return absl::OkStatus();
    lane.slots = std::vector<Lane::Slot>(static_cast<size_t>(max_outstanding));
    for (Lane::Slot& slot : lane.slots) {
      ASSIGN_OR_RETURN(slot.peer_copy, devices_[static_cast<size_t>(to)]->CreatePeerCopy(
                                           *devices_[static_cast<size_t>(from)]));
    }
    return absl::OkStatus();
  }

  absl::Status Deliver(Rank from, Rank to, uint32_t index, Lane::Slot& slot) {
    const Lane::Post& send = slot.send;
    const Lane::Post& receive = slot.receive;
    if (send.message != receive.message || send.tensor.bytes() != receive.tensor.bytes()) {
      absl::Status status = absl::InternalError(
          absl::StrCat("rank ", from.value(), " sends the ", ToString(send.message), " (",
                       send.tensor.bytes(), " bytes) where rank ", to.value(), " expects the ",
                       ToString(receive.message), " (", receive.tensor.bytes(), " bytes)"));
      Abort(status);
      return status;
    }
    RETURN_IF_ERROR(
        slot.peer_copy->Copy(receive.tensor.data, send.tensor.data, send.tensor.bytes()));
    slot.delivered.store(index + 1, std::memory_order_release);
    Signal(from);
    Signal(to);
    return absl::OkStatus();
  }

  // Wakes a rank: it has one word to sleep on, which changes whenever something happened that it
  // may be waiting for.
  void Signal(Rank rank) {
    std::atomic<uint32_t>& signal = signals_[static_cast<size_t>(rank.value())].word;
    signal.fetch_add(1, std::memory_order_release);
    base::WakeAll(signal);
  }

  template <typename Done>
  absl::Status WaitFor(Rank rank, base::Deadline deadline, Done done) {
    std::atomic<uint32_t>& signal = signals_[static_cast<size_t>(rank.value())].word;
    for (;;) {
      const uint32_t seen = signal.load(std::memory_order_acquire);
      if (done()) return absl::OkStatus();
      RETURN_IF_ERROR(Poll());
      if (!base::WaitWhileEqual(signal, seen, deadline)) return absl::DeadlineExceededError("");
    }
  }

  struct alignas(64) SignalWord {
    std::atomic<uint32_t> word{0};
  };

  const std::vector<kernels::Device*> devices_;
  const int ranks_;
  std::vector<Lane> lanes_;  // from * ranks + to
  std::vector<SignalWord> signals_;
  std::atomic<bool> aborted_{false};
  base::Mutex abort_mutex_;
  absl::Status abort_reason_ ABSL_GUARDED_BY(abort_mutex_);
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Rank rank, std::shared_ptr<Group> group)
      : rank_(rank), group_(std::move(group)) {}

  Rank rank() const override { return rank_; }
  int ranks() const override { return group_->ranks(); }
  absl::StatusOr<Ticket> PostSend(Rank to, const Message& message, const Tensor& tensor) override {
    CountSend(tensor);
    return group_->Post(/*is_send=*/true, rank_, to, message, tensor);
  }
  absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                     const Tensor& tensor) override {
    return group_->Post(/*is_send=*/false, from, rank_, message, tensor);
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status Wait(const Ticket& ticket, base::Deadline deadline) override {
    return group_->Wait(rank_, ticket, deadline);
  }
  absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(const Ticket& ticket) override {
    return group_->DeliveredAt(ticket);
  }
  void Restart() override {}
  absl::Status Poll() override { return group_->Poll(); }
  void Abort(const absl::Status& reason) override { group_->Abort(reason); }

 private:
  const Rank rank_;
  const std::shared_ptr<Group> group_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Transport>>> CreateInProcessTransports(
    const InProcessOptions& options) {
  auto group = std::make_shared<Group>(options);
  RETURN_IF_ERROR(group->Open(options));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(Rank(rank), group));
  }
  return transports;
}

}  // namespace stagecoach::engine
