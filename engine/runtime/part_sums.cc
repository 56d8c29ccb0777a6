#include "engine/runtime/part_sums.h"

#include <bit>
#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

Tensor ElementsOf(const Tensor& whole, const ElementRange& range) {
  if (range.count() == 0) return {};
  return {static_cast<std::byte*>(whole.data) + range.begin * SizeOf(whole.dtype), whole.dtype,
          Shape{range.count()}};
}

}  // namespace

int TransportPartSums::MostGroups(int parts, int rounds) {
  return std::countr_zero(static_cast<unsigned>(parts)) * rounds + 1;
}

absl::Status TransportPartSums::AddUp(kernels::Stream& stream, const Tensor& tensor,
                                      std::byte* scratch) {
  const int part = transport_.rank().value();
  absl::InlinedVector<RangeHalves, 8> halves;
  ElementRange range{0, tensor.elements()};
  int round = 0;
  for (; 1 << round < transport_.ranks(); ++round) {
    halves.push_back(HalveFor(part, round, range));
    range = halves.back().own;
    const Tensor own = ElementsOf(tensor, range);
    Tensor theirs = own;
    theirs.data = scratch;
    RETURN_IF_ERROR(Exchange(part ^ 1 << round, round, ElementsOf(tensor, halves.back().other),
                             own.empty() ? own : theirs));
    if (own.empty()) continue;
    RETURN_IF_ERROR(device_.ops().elementwise().Add(stream, own, theirs, own));
  }
  while (round-- > 0) {
    const auto& [own, other] = halves[static_cast<size_t>(round)];
    const bool is_lower = own.begin < other.begin;
    RETURN_IF_ERROR(Exchange(part ^ 1 << round, round,
                             ElementsOf(tensor, is_lower ? ElementRange{own.begin, other.begin}
                                                         : ElementRange{other.end, own.end}),
                             ElementsOf(tensor, is_lower ? ElementRange{own.end, other.end}
                                                         : ElementRange{other.begin, own.begin})));
  }
  return absl::OkStatus();
}

absl::Status TransportPartSums::Gather(kernels::Stream& /*stream*/, const Tensor& tensor) {
  const int part = transport_.rank().value();
  const int64_t piece = tensor.elements() / transport_.ranks();
  for (int round = 0; 1 << round < transport_.ranks(); ++round) {
    const int partner = part ^ 1 << round;
    // Each has the pieces of all parts whose numbers differ from its own in lower bits alone.
    const auto pieces_of = [&](int one) {
      const int64_t first = one >> round << round;
      return ElementsOf(tensor, {first * piece, (first + (1 << round)) * piece});
    };
    RETURN_IF_ERROR(Exchange(partner, round, pieces_of(part), pieces_of(partner)));
  }
  return absl::OkStatus();
}

absl::Status TransportPartSums::Exchange(int partner, int round, const Tensor& sent,
                                         const Tensor& received) {
  const Message message = {.kind = Message::Kind::kPartSums, .stage = StageId(round)};
  Transport::Ticket out, in;
  if (!received.empty()) {
    ASSIGN_OR_RETURN(in, transport_.PostReceive(Rank(partner), message, received));
  }
  if (!sent.empty()) ASSIGN_OR_RETURN(out, transport_.PostSend(Rank(partner), message, sent));
  if (before_flush_) RETURN_IF_ERROR(before_flush_());
  RETURN_IF_ERROR(transport_.Flush());
  const base::Deadline deadline = base::Deadline::After(deadline_);
  RETURN_IF_ERROR(transport_.Wait(in, deadline));
  return transport_.Wait(out, deadline);
}

}  // namespace stagecoach::engine
