#include "engine/comm/collectives.h"

#include <algorithm>
#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using kernels::Tensor;

// Holds up to 17 ranks without allocating.
using Tickets = absl::InlinedVector<Transport::Ticket, 32>;

// Returns the part of a tensor that belongs to rank number `index`; the parts lie one after the
// other.
Tensor PartOf(const Tensor& whole, const Tensor& part, size_t index) {
  return {static_cast<std::byte*>(whole.data) + static_cast<int64_t>(index) * part.bytes(),
          part.dtype, part.shape};
}

size_t IndexOf(Rank rank, absl::Span<const Rank> ranks) {
  return static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

absl::Status WaitForAll(Transport& transport, const Tickets& tickets, base::Deadline deadline) {
  RETURN_IF_ERROR(transport.Flush());
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(transport.Wait(ticket, deadline));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AllGather(Transport& transport, absl::Span<const Rank> ranks, kernels::Stream& stream,
                       Message::Kind kind, const Tensor& mine, const Tensor& all,
                       base::Deadline deadline) {
  const Message message = {.kind = kind};
  const size_t own = IndexOf(transport.rank(), ranks);
  const Tensor place = PartOf(all, mine, own);
  if (place.data != mine.data) {
    RETURN_IF_ERROR(stream.Copy(place.data, mine.data, mine.bytes()));
  }
  Tickets tickets;
  // Each rank meets the others in the order of their distance: pairs of one distance are disjoint.
  for (size_t distance = 1; distance < ranks.size(); ++distance) {
    const size_t from = (own + distance) % ranks.size();
    const size_t to = (own + ranks.size() - distance) % ranks.size();
    ASSIGN_OR_RETURN(tickets.emplace_back(),
                     transport.PostReceive(ranks[from], message, PartOf(all, mine, from)));
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostSend(ranks[to], message, mine));
  }
  return WaitForAll(transport, tickets, deadline);
}

}  // namespace stagecoach::engine
