#ifndef STAGECOACH_ENGINE_COMM_COLLECTIVES_H_
#define STAGECOACH_ENGINE_COMM_COLLECTIVES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "engine/comm/transport.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Collectives made of the sends and receives that every transport has, so that all of them have the
// same results. `ranks` are the ranks that take part, ascending, the transport's own among them;
// each must call the function with the same ranks at the same place of its order of messages.
// Collectives run in the stream's order, as do all transfers. `deadline` is that of all waits.

// Gathers what every rank contributes: `mine` are all of the same shape and kind of message; `all`
// gets them in order of rank, with one more, outermost dimension; `mine` may be in its place there.
absl::Status AllGather(Transport& transport, absl::Span<const Rank> ranks, kernels::Stream& stream,
                       Message::Kind kind, const kernels::Tensor& mine, const kernels::Tensor& all,
                       base::Deadline deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_COLLECTIVES_H_
