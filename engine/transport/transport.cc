#include "engine/transport/transport.h"

#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

using kernels::Tensor;

std::string ToString(const Message& message) {
  if (message.kind == Message::Kind::kNorms) return "norms of the gradients";
  if (message.kind == Message::Kind::kResults) return "results of the loss";
  return absl::StrCat(message.kind == Message::Kind::kActivation ? "activation" : "gradient",
                      " of stage ", message.boundary.value(), ", micro-batch ",
                      message.micro_batch.value());
}

absl::Status AllGather(Transport& transport, kernels::Stream& stream, const Tensor& mine,
                       const Tensor& all, base::Deadline deadline) {
  constexpr Message kMessage = {.kind = Message::Kind::kNorms};
  const auto part_of = [&](int rank) {
    return Tensor{static_cast<std::byte*>(all.data) + rank * mine.bytes(), mine.dtype, mine.shape};
  };
  const int own = transport.rank().value();
  RETURN_IF_ERROR(stream.Copy(part_of(own).data, mine.data, mine.bytes()));
  absl::InlinedVector<Transport::Ticket, 32> tickets;  // no allocation for up to 17 ranks
  // Each rank meets the others in the order of their distance: all pairs of one distance are apart.
  for (int distance = 1; distance < transport.ranks(); ++distance) {
    const int from = (own + distance) % transport.ranks();
    const int to = (own + transport.ranks() - distance) % transport.ranks();
    ASSIGN_OR_RETURN(tickets.emplace_back(),
                     transport.PostReceive(Rank(from), kMessage, part_of(from)));
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostSend(Rank(to), kMessage, mine));
  }
  RETURN_IF_ERROR(transport.Flush());
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(transport.Wait(ticket, deadline));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
