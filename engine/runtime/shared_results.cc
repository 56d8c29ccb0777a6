#include "engine/runtime/shared_results.h"

#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

absl::StatusOr<SharedResults> SharedResults::Create(const Options& options) {
  SharedResults shared(options);
  const schedule::Schedule& schedule = *options.schedule;
  const Shape own = {schedule.num_micro_batches, 2};
  const int64_t place_bytes = schedule::AlignBlock(Tensor{nullptr, DType::kFloat64, own}.bytes());
  std::byte* table = options.table;
  if (options.loss_stage == nullptr) {
    shared.received_ = {table, DType::kFloat64, own};
    table += place_bytes;
  }
  if (options.replicas != nullptr) {
    const int64_t bytes = options.replicas->ranks() * place_bytes;
    // Each shard of the one part is then one replica's place.
    const int replicas = options.replicas->ranks();
    const partition::Replication replication = {.replicas = replicas, .gradient_blocks = replicas};
    if (bytes > replication.part_bytes) {
      return absl::UnimplementedError(
          absl::StrCat("replicas share the results of ", schedule.num_micro_batches,
                       " micro-batches each, which take ", bytes, " bytes: at most ",
                       replication.part_bytes, " are possible; use fewer micro-batches"));
    }
    shared.of_all_ = {table, DType::kFloat32, Shape{bytes / SizeOf(DType::kFloat32)}};
    Reduction::Options gather = {.device = options.device,
                                 .beside = options.beside,
                                 .replication = replication,
                                 .replicas = options.replicas,
                                 .deadline = options.deadline,
                                 .tasks = {}};
    gather.tasks.push_back({.op = schedule::Op::kShareResults,
                            .stage = StageId(schedule.num_stages() - 1),
                            .gathered = shared.of_all_});
    ASSIGN_OR_RETURN(shared.gather_, Reduction::Create(std::move(gather)));
  }
  if (options.before_steps) {
    if (options.replicas != nullptr) table += options.replicas->ranks() * place_bytes;
    shared.presences_ = {table, DType::kFloat64, Shape{schedule.num_ranks()}};
  }
  const Tensor& read = shared.of_all_.empty() ? shared.received_ : shared.of_all_;
  ASSIGN_OR_RETURN(shared.host_results_, options.device->AllocateHost(read.bytes()));
  return shared;
}

absl::Status SharedResults::ExchangeAmongRanks(Transport& transport, absl::Span<const Rank> ranks) {
  constexpr Message kMessage = {.kind = Message::Kind::kResults};
  const Stage* const loss_stage = options_.loss_stage;
  const Rank owner = options_.schedule->rank_of(StageId(options_.schedule->num_stages() - 1));
  absl::InlinedVector<Transport::Ticket, 64> tickets;
  for (const Rank rank : ranks) {
    if (rank == transport.rank()) continue;
    if (rank == owner || options_.before_steps) {
      ASSIGN_OR_RETURN(
          tickets.emplace_back(),
          transport.PostReceive(rank, kMessage, rank == owner ? received_ : PresenceOf(rank)));
    }
    if (loss_stage != nullptr || options_.before_steps) {
      ASSIGN_OR_RETURN(tickets.emplace_back(),
                       transport.PostSend(rank, kMessage,
                                          loss_stage != nullptr ? loss_stage->results()
                                                                : PresenceOf(transport.rank())));
    }
  }
  RETURN_IF_ERROR(transport.Flush());
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(transport.Wait(ticket, base::Deadline::After(options_.deadline)));
  }
  return absl::OkStatus();
}

absl::Status SharedResults::ExchangeAmongReplicas(Transport& transport) {
  if (gather_ == nullptr) return absl::OkStatus();
  const Stage* const loss_stage = options_.loss_stage;
  const Tensor& own = loss_stage != nullptr ? loss_stage->results() : received_;
  std::byte* const place =
      static_cast<std::byte*>(of_all_.data) + PlaceOf(options_.replicas->rank().value());
  RETURN_IF_ERROR(options_.device->stream().Copy(place, own.data, own.bytes()));
  RETURN_IF_ERROR(gather_->Start({}));
  return gather_->AwaitAll(transport);
}

Tensor SharedResults::PresenceOf(Rank rank) const {
  return {presences_.f64() + rank.value(), DType::kFloat64, Shape{1}};
}

absl::Status SharedResults::Fetch() {
  const Tensor& read = of_all_.empty() ? received_ : of_all_;
  if (read.empty()) return absl::OkStatus();
  return options_.device->stream().CopyToHost(host_results_.data(), read.data, read.bytes());
}

LossResult SharedResults::Result(int replica, MicroBatch micro_batch) const {
  if (gather_ == nullptr && options_.loss_stage != nullptr) {
    return options_.loss_stage->Result(micro_batch);
  }
  const std::byte* const place = host_results_.data() + (gather_ == nullptr ? 0 : PlaceOf(replica));
  const double* const result =
      reinterpret_cast<const double*>(place) + int64_t{2} * micro_batch.value();
  return {result[0], static_cast<int64_t>(result[1])};
}

}  // namespace stagecoach::engine
