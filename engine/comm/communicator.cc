#include "engine/comm/communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using kernels::Communicator;
using kernels::Tensor;

class CommunicatorTransport final : public Transport {
 public:
  CommunicatorTransport(std::unique_ptr<Communicator> communicator, Rank rank, int ranks,
                        std::shared_ptr<AbortFlag> abort)
      : communicator_(std::move(communicator)),
        rank_(rank),
        ranks_(ranks),
        abort_(std::move(abort)) {}
  // Says no goodbye if the group has failed.
  ~CommunicatorTransport() override { static_cast<void>(CommunicatorTransport::Poll()); }

  Rank rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  bool occupies_gpu() const override { return true; }

  absl::StatusOr<Ticket> PostSend(Rank to, const Message& message, const Tensor& tensor) override {
    RETURN_IF_ERROR(abort_->reason());
    CountSend(tensor);
    RETURN_IF_ERROR(Of(message, communicator_->Send(to.value(), tensor.data, tensor.bytes())));
    return Collected();
  }

  absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                     const Tensor& tensor) override {
    RETURN_IF_ERROR(abort_->reason());
    RETURN_IF_ERROR(Of(message, communicator_->Receive(from.value(), tensor.data, tensor.bytes())));
    return Collected();
  }

  absl::StatusOr<Ticket> PostSum(const Message& message, const Tensor& tensor) override {
    RETURN_IF_ERROR(abort_->reason());
    CountSum(tensor);
    RETURN_IF_ERROR(
        Of(message, communicator_->Sum(static_cast<float*>(tensor.data), tensor.shape.elements())));
    return Collected();
  }

  absl::Status Flush() override {
    if (!is_collecting_) return absl::OkStatus();
    is_collecting_ = false;
    ++launched_;
    return communicator_->Launch().status();
  }

  absl::Status Wait(const Ticket& ticket, base::Deadline /*deadline*/) override {
    if (ticket.lane < 0) return absl::OkStatus();
    RETURN_IF_ERROR(abort_->reason());
    const auto group = static_cast<Communicator::Group>(ticket.index);
    if (group == launched_) RETURN_IF_ERROR(Flush());
    return communicator_->ComeAfter(group);
  }

  absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(const Ticket& ticket) override {
    return communicator_->DoneAt(static_cast<Communicator::Group>(ticket.index));
  }

  void Restart() override {
    launched_ = 0;
    communicator_->Restart();
  }

  absl::Status Poll() override {
    absl::Status status = abort_->reason();
    if (status.ok()) status = communicator_->Poll();
    if (!status.ok() && !std::exchange(is_aborted_, true)) communicator_->Abort();
    return status;
  }

  void Abort(const absl::Status& reason) override { abort_->Raise(reason); }

 private:
  // Returns the ticket of what was just added: the group that is being collected.
  Ticket Collected() {
    is_collecting_ = true;
    return {.lane = 0, .index = static_cast<uint32_t>(launched_)};
  }

  static absl::Status Of(const Message& message, const absl::Status& status) {
    return status.ok() ? status : base::Annotate(status, ToString(message));
  }

  const std::unique_ptr<Communicator> communicator_;
  const Rank rank_;
  const int ranks_;
  const std::shared_ptr<AbortFlag> abort_;
  int32_t launched_ = 0;  // groups since the last Restart
  bool is_collecting_ = false;
  bool is_aborted_ = false;
};

}  // namespace

void AbortFlag::Raise(const absl::Status& reason) {
  {
    base::MutexLock lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = reason;
  }
  raised_.store(true, std::memory_order_release);
}

absl::Status AbortFlag::reason() {
  if (!raised_.load(std::memory_order_acquire)) return absl::OkStatus();
  base::MutexLock lock(mutex_);
  return reason_;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateCommunicatorTransport(
    kernels::Device& device, kernels::CommunicatorOptions options,
    std::shared_ptr<AbortFlag> abort) {
  options.poll = [abort] { return abort->reason(); };
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, device.CreateCommunicator(options));
  return std::make_unique<CommunicatorTransport>(std::move(communicator), Rank(options.rank),
                                                 options.ranks, std::move(abort));
}

}  // namespace stagecoach::engine
