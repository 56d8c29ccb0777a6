#include "schedule/validator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "schedule/action_table.h"
#include "schedule/progress.h"

namespace stagecoach::schedule {
namespace {

constexpr int32_t kNowhere = ActionTable::kNowhere;

// Checks the rules one by one; each check may rely on those before it.
class Validator {
 public:
  Validator(const Schedule& schedule, const ActionTable& table)
      : schedule_(schedule), table_(table), trains_(schedule.HasBackward()) {}

  absl::Status CheckCompleteness() const;
  absl::Status CheckComputeOrder() const;
  absl::Status CheckTransferOrder() const;
  absl::Status CheckEveryTransferExists() const;
  absl::Status CheckMatching() const;
  absl::Status CheckProgress() const;

 private:
  absl::Status CheckStage(StageId stage) const;
  absl::Status CheckMicroBatchOrder(StageId stage, Op op) const;
  absl::Status CheckExists(const Action& action, absl::string_view why) const;
  absl::Status CheckBefore(const Action& earlier, const Action& later, absl::string_view why) const;

  std::string WhereIs(const Action& action) const {
    return Where(schedule_, schedule_.rank_of(action.stage), table_.Find(action));
  }

  const Schedule& schedule_;
  const ActionTable& table_;
  const bool trains_;
};

absl::Status Validator::CheckExists(const Action& action, absl::string_view why) const {
  if (table_.Find(action) != kNowhere) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("rank ",
                                                    schedule_.rank_of(action.stage).value(), ": ",
                                                    ToString(action), " is missing; ", why));
}

// Pre-condition: both actions exist, on the same rank.
absl::Status Validator::CheckBefore(const Action& earlier, const Action& later,
                                    absl::string_view why) const {
  if (table_.Find(earlier) <= table_.Find(later)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(WhereIs(later), ": must come after position ",
                                                    table_.Find(earlier), " (", ToString(earlier),
                                                    "); ", why));
}

absl::Status Validator::CheckStage(StageId stage) const {
  int32_t last = 0;
  for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
    RETURN_IF_ERROR(
        CheckExists({Op::kForward, stage, mb}, "every stage performs F of every micro-batch once"));
    if (!trains_) continue;
    for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) {
      RETURN_IF_ERROR(
          CheckExists({op, stage, mb},
                      "in training every stage performs BW, or B and W, of every micro-batch"));
      last = std::max(last, table_.Find(op, stage, mb));
    }
  }
  const int32_t step = table_.FindStep(stage);
  if (!trains_ && step != kNowhere) {
    return absl::FailedPreconditionError(
        absl::StrCat(Where(schedule_, schedule_.rank_of(stage), step),
                     ": a schedule without backward passes has nothing to step with; remove it"));
  }
  if (trains_ && step < last) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", schedule_.rank_of(stage).value(), ": stage ", stage.value(), " has ",
                     step == kNowhere ? "no STEP" : absl::StrCat("its STEP at position ", step),
                     "; it must come after ", Where(schedule_, schedule_.rank_of(stage), last),
                     " (Lower adds it)"));
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckCompleteness() const {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    RETURN_IF_ERROR(CheckStage(stage));
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckMicroBatchOrder(StageId stage, Op op) const {
  for (MicroBatch mb(1); mb.value() < schedule_.num_micro_batches; ++mb) {
    RETURN_IF_ERROR(CheckBefore({op, stage, MicroBatch(mb.value() - 1)}, {op, stage, mb},
                                "gradients are summed in micro-batch order"));
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckComputeOrder() const {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    const StageId next(stage.value() + 1);
    const bool in_place = !schedule_.is_last(stage) && !schedule_.sends_to_next(stage);
    for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
      const Action forward{Op::kForward, stage, mb};
      const Action backward{Op::kBackwardInput, stage, mb};
      if (in_place) {
        RETURN_IF_ERROR(
            CheckBefore(forward, {Op::kForward, next, mb}, "it reads the previous stage's output"));
      }
      if (!trains_) continue;
      RETURN_IF_ERROR(CheckBefore(forward, backward, "backward needs what forward has kept"));
      RETURN_IF_ERROR(CheckBefore(backward, {Op::kBackwardWeight, stage, mb},
                                  "W needs the gradients that B has kept"));
      if (in_place) {
        RETURN_IF_ERROR(CheckBefore({Op::kBackwardInput, next, mb}, backward,
                                    "it reads the gradient of the next stage's input"));
      }
    }
    if (!trains_) continue;
    RETURN_IF_ERROR(CheckMicroBatchOrder(stage, Op::kBackwardInput));
    RETURN_IF_ERROR(CheckMicroBatchOrder(stage, Op::kBackwardWeight));
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckTransferOrder() const {
  for (const std::vector<Action>& list : schedule_.actions) {
    for (const Action& action : list) {
      if (!IsTransfer(action.op)) continue;
      const Action compute{ComputeOf(action.op), action.stage, action.micro_batch};
      if (table_.Find(compute) == kNowhere) {
        return absl::FailedPreconditionError(absl::StrCat(
            WhereIs(action), ": a schedule without backward passes has no gradients; remove it"));
      }
      if (IsSend(action.op)) {
        RETURN_IF_ERROR(CheckBefore(compute, action, "a buffer is sent after it is filled"));
      } else {
        RETURN_IF_ERROR(CheckBefore(action, compute, "its input's receive must be posted first"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckEveryTransferExists() const {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    if (!schedule_.sends_to_next(stage)) continue;
    for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
      for (const Op op : {Op::kSendActivation, Op::kReceiveGradient}) {
        if (!trains_ && op == Op::kReceiveGradient) continue;
        const Action transfer{op, stage, mb};
        for (const Action& end : {transfer, OtherEnd(transfer)}) {
          RETURN_IF_ERROR(CheckExists(
              end, "neighbouring stages on different ranks exchange messages (Lower adds them)"));
        }
      }
    }
  }
  return absl::OkStatus();
}

// As every message has one send and one receive, the orders of a pair agree if and only if the
// sends' positions ascend along the receives.
absl::Status Validator::CheckMatching() const {
  std::vector<int32_t> last_send(schedule_.actions.size());  // index: sending rank
  for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) {
    std::fill(last_send.begin(), last_send.end(), kNowhere);
    for (const Action& receive : schedule_.list_of(rank)) {
      if (!IsReceive(receive.op)) continue;
      const Rank peer = PeerOf(schedule_, receive);
      const int32_t send = table_.Find(OtherEnd(receive));
      int32_t& last = last_send[static_cast<size_t>(peer.value())];
      if (send < last) {
        return absl::FailedPreconditionError(absl::StrCat(
            WhereIs(receive), ": out of order: it takes what ", Where(schedule_, peer, send),
            " sends, but the receive before it from that peer takes the later ",
            Where(schedule_, peer, last), "; receive in the order of the sends"));
      }
      last = send;
    }
  }
  return absl::OkStatus();
}

absl::Status Validator::CheckProgress() const {
  const std::vector<Wait> cycle = FindDeadlock(schedule_, table_);
  if (cycle.empty()) return absl::OkStatus();
  std::string message = absl::StrCat("deadlock of ", cycle.size(), " ranks: ");
  for (const Wait& wait : cycle) {
    absl::StrAppend(&message, Where(schedule_, wait.rank, wait.position), " waits for ",
                    Where(schedule_, wait.peer, wait.peer_position), "; ");
  }
  return absl::FailedPreconditionError(
      absl::StrCat(message, "post receives earlier or change the order"));
}

absl::Status CheckStash(const Schedule& schedule, const std::vector<int>& stash_limit) {
  if (stash_limit.empty()) return absl::OkStatus();
  const std::vector<int> peak = PeakStash(schedule);
  for (size_t r = 0; r < peak.size(); ++r) {
    if (peak[r] <= stash_limit[r]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", r, " keeps up to ", peak[r], " forward results at once, its limit is ",
        stash_limit[r], "; perform its backward passes earlier or raise the limit"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Schedule& lowered, const std::vector<int>& stash_limit) {
  if (!stash_limit.empty() && stash_limit.size() != lowered.actions.size()) {
    return absl::InvalidArgumentError(absl::StrCat("stash_limit has ", stash_limit.size(),
                                                   " entries for ", lowered.actions.size(),
                                                   " ranks; give one per rank or none"));
  }
  ASSIGN_OR_RETURN(const ActionTable table, ActionTable::Build(lowered));
  const Validator validator(lowered, table);
  RETURN_IF_ERROR(validator.CheckCompleteness());
  RETURN_IF_ERROR(validator.CheckComputeOrder());
  RETURN_IF_ERROR(validator.CheckTransferOrder());
  RETURN_IF_ERROR(validator.CheckEveryTransferExists());
  RETURN_IF_ERROR(validator.CheckMatching());
  RETURN_IF_ERROR(validator.CheckProgress());
  return CheckStash(lowered, stash_limit);
}

std::vector<int> PeakStash(const Schedule& schedule) {
  std::vector<int> peak(schedule.actions.size(), 0);
  if (!schedule.HasBackward()) return peak;
  for (size_t r = 0; r < peak.size(); ++r) {
    int kept = 0;
    for (const Action& action : schedule.actions[r]) {
      if (action.op == Op::kForward) ++kept;
      if (action.op == Op::kBackwardInput || action.op == Op::kBackward) --kept;
      peak[r] = std::max(peak[r], kept);
    }
  }
  return peak;
}

}  // namespace stagecoach::schedule
