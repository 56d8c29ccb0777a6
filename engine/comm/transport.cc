#include "engine/comm/transport.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

std::string ToString(const Message& message) {
  const int stage = message.stage.value();
  const int number = message.micro_batch.value();
  switch (message.kind) {
    case Message::Kind::kActivation:
      return absl::StrCat("activation of stage ", stage, ", micro-batch ", number);
    case Message::Kind::kGradient:
      return absl::StrCat("gradient of stage ", stage, ", micro-batch ", number);
    case Message::Kind::kNorms:
      return "norms of the gradients";
    case Message::Kind::kResults:
      return "results of the loss";
    case Message::Kind::kAddends:
      return absl::StrCat("gradients of stage ", stage, " from one replica, part ", number);
    case Message::Kind::kSums:
      return absl::StrCat("gradients of stage ", stage, " summed, part ", number);
    case Message::Kind::kState:
      return absl::StrCat("piece ", number, " of what is trained");
    case Message::Kind::kTied:
      return absl::StrCat("tied gradients of stage ", stage, ", part ", number);
    case Message::Kind::kPartSums:
      return absl::StrCat("share of a layer that devices compute together, round ", stage);
  }
  return "?";
}

absl::StatusOr<Transport::Ticket> Transport::PostSum(const Message& message,
                                                     const kernels::Tensor& /*tensor*/) {
  return absl::UnimplementedError(
      absl::StrCat(ToString(message), ": copies between devices have no all-reduce"));
}

}  // namespace stagecoach::engine
