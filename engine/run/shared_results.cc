#include "engine/run/shared_results.h"

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

absl::StatusOr<SharedResults> SharedResults::Create(kernels::Device& device, std::byte* table,
                                                    const schedule::Schedule& schedule,
                                                    const Stage* loss_stage) {
  const Rank owner = schedule.rank_of(StageId(schedule.num_stages() - 1));
  SharedResults shared(device, owner, loss_stage);
  if (loss_stage != nullptr) return shared;
  shared.results_ = {table, kernels::DType::kFloat64, Shape{schedule.num_micro_batches, 2}};
  ASSIGN_OR_RETURN(shared.host_results_, device.AllocateHost(shared.results_.bytes()));
  return shared;
}

absl::Status SharedResults::Exchange(Transport& transport, absl::Span<const Rank> ranks,
                                     absl::Duration deadline) {
  constexpr Message kMessage = {.kind = Message::Kind::kResults};
  absl::InlinedVector<Transport::Ticket, 32> tickets;
  if (loss_stage_ == nullptr) {
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostReceive(owner_, kMessage, results_));
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
  return absl::OkStatus();
}

absl::Status SharedResults::Fetch() {
  if (loss_stage_ != nullptr) return absl::OkStatus();
  return device_->stream().CopyToHost(host_results_.data(), results_.data, results_.bytes());
}

LossResult SharedResults::Received(MicroBatch micro_batch) const {
  const double* const result =
      reinterpret_cast<const double*>(host_results_.data()) + int64_t{2} * micro_batch.value();
  return {result[0], static_cast<int64_t>(result[1])};
}

}  // namespace stagecoach::engine
