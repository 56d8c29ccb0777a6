#include "engine/run/shared_results.h"

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/stage/layer_cost.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

absl::StatusOr<SharedResults> SharedResults::Create(kernels::Device& device,
                                                    const schedule::Schedule& schedule,
                                                    const Stage* loss_stage) {
  const Rank owner = schedule.rank_of(StageId(schedule.num_stages() - 1));
  SharedResults shared(device, owner, loss_stage);
  if (loss_stage != nullptr) return shared;
  const int64_t bytes = schedule.num_micro_batches * kLossBytesPerMicroBatch;
  ASSIGN_OR_RETURN(shared.results_, device.AllocateTable(bytes));
  ASSIGN_OR_RETURN(shared.host_results_, device.AllocateHost(bytes));
  return shared;
}

absl::Status SharedResults::Exchange(Transport& transport, absl::Duration deadline) {
  constexpr Message kMessage = {.kind = Message::Kind::kResults};
  absl::InlinedVector<Transport::Ticket, 32> tickets;
  if (loss_stage_ == nullptr) {
    const Tensor results{results_.data(), kernels::DType::kFloat64,
                         Shape{results_.bytes() / SizeOf(kernels::DType::kFloat64)}};
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostReceive(owner_, kMessage, results));
  } else {
    for (int rank = 0; rank < transport.ranks(); ++rank) {
      if (rank == transport.rank().value()) continue;
      ASSIGN_OR_RETURN(tickets.emplace_back(),
                       transport.PostSend(Rank(rank), kMessage, loss_stage_->results()));
    }
  }
  RETURN_IF_ERROR(transport.Flush());
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(transport.Wait(ticket, base::Deadline::After(deadline)));
  }
  if (loss_stage_ != nullptr) return absl::OkStatus();
  return device_->stream().CopyToHost(host_results_.data(), results_.data(), results_.bytes());
}

LossResult SharedResults::Received(MicroBatch micro_batch) const {
  const double* const result =
      reinterpret_cast<const double*>(host_results_.data()) + 2 * micro_batch.value();
  return {result[0], static_cast<int64_t>(result[1])};
}

}  // namespace stagecoach::engine
