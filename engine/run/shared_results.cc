#include "engine/run/shared_results.h"

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/transport/collectives.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

using kernels::Shape;
using kernels::Tensor;

absl::StatusOr<SharedResults> SharedResults::Create(kernels::Device& device, std::byte* table,
                                                    const schedule::Schedule& schedule,
                                                    const Stage* loss_stage, Transport* replicas) {
  const Rank owner = schedule.rank_of(StageId(schedule.num_stages() - 1));
  SharedResults shared(device, owner, loss_stage, replicas);
  const Shape own = {schedule.num_micro_batches, 2};
  if (loss_stage == nullptr) {
    shared.received_ = {table, kernels::DType::kFloat64, own};
    table += shared.received_.bytes();
  }
  if (replicas != nullptr) {
    for (Rank replica(0); replica.value() < replicas->ranks(); ++replica) {
      shared.all_replicas_.push_back(replica);
    }
    shared.of_all_ = {table, kernels::DType::kFloat64, own.Batched(replicas->ranks())};
  }
  const Tensor& read = shared.of_all_.empty() ? shared.received_ : shared.of_all_;
  ASSIGN_OR_RETURN(shared.host_results_, device.AllocateHost(read.bytes()));
  return shared;
}

absl::Status SharedResults::Exchange(Transport& transport, absl::Span<const Rank> ranks,
                                     absl::Duration deadline) {
  constexpr Message kMessage = {.kind = Message::Kind::kResults};
  absl::InlinedVector<Transport::Ticket, 32> tickets;
  if (loss_stage_ == nullptr) {
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostReceive(owner_, kMessage, received_));
  } else {
    for (const Rank rank : ranks) {
      if (rank == transport.rank()) continue;
      ASSIGN_OR_RETURN(tickets.emplace_back(),
                       transport.PostSend(rank, kMessage, loss_stage_->results()));
    }
  }
  RETURN_IF_ERROR(transport.Flush());
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(transport.Wait(ticket, base::Deadline::After(deadline)));
  }
  if (replicas_ == nullptr) return absl::OkStatus();
  replicas_->Restart();
  return AllGather(*replicas_, all_replicas_, device_->stream(), Message::Kind::kResults,
                   loss_stage_ != nullptr ? loss_stage_->results() : received_, of_all_,
                   base::Deadline::After(deadline));
}

absl::Status SharedResults::Fetch() {
  const Tensor& read = of_all_.empty() ? received_ : of_all_;
  if (read.empty()) return absl::OkStatus();
  return device_->stream().CopyToHost(host_results_.data(), read.data, read.bytes());
}

LossResult SharedResults::Result(int replica, MicroBatch micro_batch) const {
  if (of_all_.empty() && loss_stage_ != nullptr) return loss_stage_->Result(micro_batch);
  const int64_t micro_batches = of_all_.empty() ? 0 : of_all_.shape.dim(1);
  const double* const result = reinterpret_cast<const double*>(host_results_.data()) +
                               2 * (replica * micro_batches + micro_batch.value());
  return {result[0], static_cast<int64_t>(result[1])};
}

}  // namespace stagecoach::engine
