#include "schedule/ir/action.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace stagecoach::schedule {

Action OtherEnd(const Action& transfer) {
  const auto op = [&] {
    switch (transfer.op) {
      case Op::kReceiveActivation:
        return Op::kSendActivation;
      case Op::kSendActivation:
        return Op::kReceiveActivation;
      case Op::kReceiveGradient:
        return Op::kSendGradient;
      case Op::kSendGradient:
        return Op::kReceiveGradient;
      default:
        STAGECOACH_CHECK(false, absl::StrCat(ToString(transfer), " is neither send nor receive"));
    }
  };
  return {.op = op(), .stage = NeighborOf(transfer), .micro_batch = transfer.micro_batch};
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
    case Op::kOffload:
      return "OFFLOAD";
    case Op::kRelease:
      return "RELEASE";
    case Op::kFetch:
      return "FETCH";
    case Op::kUnshard:
      return "UNSHARD";
    case Op::kReshard:
      return "RESHARD";
    case Op::kReduceGradients:
      return "REDUCE";
    case Op::kStep:
      return "STEP";
    case Op::kSumTies:
      return "TIES";
    case Op::kExchangeNorms:
      return "NORM";
    case Op::kShareResults:
      return "RESULTS";
  }
  return "?";
}

std::optional<Op> OpNamed(absl::string_view name) {
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    if (name == OpName(op)) return op;
  }
  return std::nullopt;
}

std::string ToString(const Action& action) {
  if (IsCollective(action.op)) {
    return absl::StrCat(OpName(action.op), " of group ", action.group.value());
  }
  std::string text = absl::StrCat("stage ", action.stage.value(), " ", OpName(action.op));
  if (HasMicroBatch(action.op)) {
    absl::StrAppend(&text, " micro-batch ", action.micro_batch.value());
  }
  return text;
}

std::string ToCode(const Action& action) {
  std::string code = absl::StrCat(
      OpName(action.op), IsCollective(action.op) ? action.group.value() : action.stage.value());
  if (HasMicroBatch(action.op)) absl::StrAppend(&code, ".", action.micro_batch.value());
  if (action.overlaps_next) code += '+';
  return code;
}

absl::StatusOr<Action> ParseCode(absl::string_view code) {
  constexpr size_t kMaxQuoted = 40;
  const auto error = [code] {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(code.substr(0, kMaxQuoted)),
        "\" is not an action: expected an operation, a stage and a micro-batch as in F2.5, "
        "BW0.3 or SEND_F1.0, an operation of the whole stage as in STEP2, or a collective and its "
        "group as in NORM0"));
  };
  absl::string_view rest = code;
  Action action;
  action.overlaps_next = absl::ConsumeSuffix(&rest, "+");
  const absl::string_view name = rest.substr(0, rest.find_first_of("0123456789"));
  const std::optional<Op> op = OpNamed(name);
  if (!op.has_value()) return error();
  action.op = *op;
  rest.remove_prefix(name.size());
  int32_t number = 0;
  const std::vector<absl::string_view> numbers = absl::StrSplit(rest, '.');
  if (numbers.size() != (HasMicroBatch(action.op) ? 2U : 1U)) return error();
  // Digits only: no signs or blanks, which SimpleAtoi accepts.
  for (const absl::string_view digits : numbers) {
    if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos) {
      return error();
    }
  }
  if (!absl::SimpleAtoi(numbers[0], &number)) return error();
  if (IsCollective(action.op)) {
    action.group = GroupId(number);
  } else {
    action.stage = StageId(number);
  }
  if (HasMicroBatch(action.op)) {
    if (!absl::SimpleAtoi(numbers[1], &number)) return error();
    action.micro_batch = MicroBatch(number);
  }
  return action;
}

}  // namespace stagecoach::schedule
