#include "engine/runtime/tied_gradients.h"

#include <algorithm>
#include <array>

#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/ops/ops.h"
#include "partition/cost/tie.h"

namespace stagecoach::engine {

using kernels::Tensor;

absl::Status TiedGradients::Sum(Transport& transport, absl::Duration deadline,
                                absl::FunctionRef<absl::Status()> once_together) {
  bool are_together = false;
  const auto once_there = [&]() -> absl::Status {
    if (are_together) return absl::OkStatus();
    are_together = true;
    return once_together();
  };
  const bool has_peers =
      std::any_of(ends_.begin(), ends_.end(), [](const End& end) { return end.other.empty(); });
  if (!has_peers) RETURN_IF_ERROR(once_there());
  kernels::ElementwiseOps& ops = device_->ops().elementwise();
  for (const End& end : ends_) {
    if (end.other.empty()) {
      RETURN_IF_ERROR(Exchange(transport, end, deadline, once_there));
      continue;
    }
    RETURN_IF_ERROR(ops.Add(device_->stream(), end.own, end.other, end.own));
    RETURN_IF_ERROR(ops.Copy(device_->stream(), end.own, end.other));
  }
  return absl::OkStatus();
}

absl::Status TiedGradients::Exchange(Transport& transport, const End& end, absl::Duration deadline,
                                     absl::FunctionRef<absl::Status()> once_there) const {
  const int64_t part_bytes = partition::TiePartBytes(end.own.bytes());
  const auto parts = static_cast<int>((end.own.bytes() + part_bytes - 1) / part_bytes);
  std::array<Part, 2> under_way;
  const auto at = [&](int index) -> Part& { return under_way[static_cast<size_t>(index % 2)]; };
  RETURN_IF_ERROR(Post(transport, end, 0, at(0)));
  for (int i = 0; i < parts; ++i) {
    if (i + 1 < parts) RETURN_IF_ERROR(Post(transport, end, i + 1, at(i + 1)));
    const Part& part = at(i);
    // The part must have been taken before it is overwritten with its sum.
    RETURN_IF_ERROR(transport.Wait(part.received_ticket, base::Deadline::After(deadline)));
    RETURN_IF_ERROR(transport.Wait(part.sent, base::Deadline::After(deadline)));
    if (i == 0) RETURN_IF_ERROR(once_there());
    // A sum of two is the same in either order.
    RETURN_IF_ERROR(
        device_->ops().elementwise().Add(device_->stream(), part.own, part.received, part.own));
  }
  return absl::OkStatus();
}

absl::Status TiedGradients::Post(Transport& transport, const End& end, int index,
                                 Part& part) const {
  const int64_t part_bytes = partition::TiePartBytes(end.own.bytes());
  const int64_t begin = index * part_bytes;
  const int64_t bytes = std::min(part_bytes, end.own.bytes() - begin);
  const kernels::Shape shape = {bytes / SizeOf(end.own.dtype)};
  part.own = {static_cast<std::byte*>(end.own.data) + begin, end.own.dtype, shape};
  part.received = {workspace_ + (index % 2) * part_bytes, end.own.dtype, shape};
  const Message message = {Message::Kind::kTied, end.first_stage, MicroBatch(index)};
  ASSIGN_OR_RETURN(part.received_ticket, transport.PostReceive(end.peer, message, part.received));
  ASSIGN_OR_RETURN(part.sent, transport.PostSend(end.peer, message, part.own));
  return transport.Flush();
}

}  // namespace stagecoach::engine
