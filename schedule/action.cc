#include "schedule/action.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::schedule {

Action OtherEnd(const Action& transfer) {
  const StageId previous(transfer.stage.value() - 1);
  const StageId next(transfer.stage.value() + 1);
  switch (transfer.op) {
    case Op::kReceiveActivation:
      return {Op::kSendActivation, previous, transfer.micro_batch};
    case Op::kSendActivation:
      return {Op::kReceiveActivation, next, transfer.micro_batch};
    case Op::kReceiveGradient:
      return {Op::kSendGradient, next, transfer.micro_batch};
    case Op::kSendGradient:
      return {Op::kReceiveGradient, previous, transfer.micro_batch};
    default:
      STAGECOACH_CHECK(false, absl::StrCat(ToString(transfer), " is neither send nor receive"));
  }
}

const char* OpName(Op op) {
  switch (op) {
    case Op::kForward:
      return "F";
    case Op::kBackwardInput:
      return "B";
    case Op::kBackwardWeight:
      return "W";
    case Op::kBackward:
      return "BW";
    case Op::kReceiveActivation:
      return "RECV_F";
    case Op::kSendActivation:
      return "SEND_F";
    case Op::kReceiveGradient:
      return "RECV_B";
    case Op::kSendGradient:
      return "SEND_B";
    case Op::kStep:
      return "STEP";
  }
  return "?";
}

std::string ToString(const Action& action) {
  std::string text = absl::StrCat("stage ", action.stage.value(), " ", OpName(action.op));
  if (action.op != Op::kStep) {
    absl::StrAppend(&text, " micro-batch ", action.micro_batch.value());
  }
  return text;
}

}  // namespace stagecoach::schedule
