#include "schedule/verify/validator.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "schedule/ir/action_table.h"
#include "schedule/transforms/transfer_groups.h"
#include "schedule/verify/collective_rules.h"
#include "schedule/verify/progress.h"

namespace stagecoach::schedule {
namespace {

constexpr int32_t kNowhere = ActionTable::kNowhere;

// Checks the rules one by one; each check may rely on those before it. A check returns true, or
// records the first violation and returns false.
class Validator {
 public:
  Validator(const Schedule& schedule, const ActionTable& table)
      : schedule_(schedule), table_(table), trains_(schedule.HasBackward()) {}

  bool CheckAll(Transfers transfers) {
    return CheckCompleteness() && CheckComputeOrder() && CheckMovedStashes() &&
           CheckTransferOrder() && CheckEveryTransferExists() && CheckMatching() &&
           CheckProgress() && (transfers == Transfers::kSeparate || CheckGroups()) &&
           CheckMatchingOfCollectives();
  }

  const Violation& violation() const { return violation_; }

 private:
  bool CheckCompleteness();
  bool CheckStage(StageId stage);
  bool CheckOncePerStage(StageId stage, int32_t last_backward);
  bool CheckCollectives();
  bool CheckComputeOrder();
  bool CheckMicroBatch(StageId stage, MicroBatch mb);
  bool CheckMicroBatchOrder(StageId stage, Op op);
  bool CheckMovedStashes();
  bool CheckTransferOrder();
  bool CheckEveryTransferExists();
  bool CheckMatching();
  bool CheckMatchingOfCollectives();
  bool CheckProgress();
  bool CheckGroups();
  bool CheckLanes(const TransferGroups::Group& group);
  bool CheckOtherEnds(const TransferGroups::Group& group, const TransferGroups& groups);

  bool CheckExists(const Action& action, absl::string_view why);
  // Pre-condition: both actions exist, on the same rank.
  bool CheckBefore(const Action& earlier, const Action& later, absl::string_view why);

  // Omits the position, which means nothing to the author of a schedule that was lowered since.
  std::string NameOf(Rank rank, int32_t position) const {
    return ToString(schedule_.list_of(rank)[static_cast<size_t>(position)]);
  }
  bool FailAt(Rank rank, int32_t position, std::string reason) {
    violation_ = ViolationAt(schedule_, rank, position, std::move(reason));
    return false;
  }
  bool FailInCycle(std::vector<Wait> cycle, absl::string_view advice) {
    FailAt(cycle[0].rank, cycle[0].position,
           absl::StrCat("deadlock of ", cycle.size(), " ranks, each of which waits for the next",
                        advice));
    violation_.cycle = std::move(cycle);
    return false;
  }
  bool FailAt(const Action& action, std::string reason) {
    return FailAt(schedule_.rank_of(action.stage), table_.Find(action), std::move(reason));
  }
  bool FailFor(const Action& missing, std::string reason) {
    violation_.rank = schedule_.rank_of(missing.stage);
    violation_.action = missing;
    violation_.reason = std::move(reason);
    return false;
  }

  const Schedule& schedule_;
  const ActionTable& table_;
  const bool trains_;
  Violation violation_;
};

bool Validator::CheckExists(const Action& action, absl::string_view why) {
  if (table_.Find(action) != kNowhere) return true;
  return FailFor(action, absl::StrCat(ToString(action), " is missing; ", why));
}

bool Validator::CheckBefore(const Action& earlier, const Action& later, absl::string_view why) {
  if (table_.Find(earlier) <= table_.Find(later)) return true;
  return FailAt(later, absl::StrCat("must come after ", ToString(earlier), "; ", why));
}

bool Validator::CheckCompleteness() {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    if (!CheckStage(stage)) return false;
  }
  return CheckCollectives();
}

bool Validator::CheckCollectives() {
  std::optional<Violation> violation = FindMisplacedCollective(schedule_, table_);
  if (!violation.has_value()) return true;
  violation_ = *std::move(violation);
  return false;
}

bool Validator::CheckStage(StageId stage) {
  int32_t last_backward = kNowhere;
  for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
    if (!CheckExists({.op = Op::kForward, .stage = stage, .micro_batch = mb},
                     "every stage performs F of every micro-batch once")) {
      return false;
    }
    if (!trains_) continue;
    for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) {
      if (!CheckExists({.op = op, .stage = stage, .micro_batch = mb},
                       "in training every stage performs BW, or B and W, of every micro-batch")) {
        return false;
      }
      last_backward = std::max(last_backward, table_.Find(op, stage, mb));
    }
  }
  return CheckOncePerStage(stage, last_backward);
}

bool Validator::CheckOncePerStage(StageId stage, int32_t last_backward) {
  const Rank rank = schedule_.rank_of(stage);
  const int32_t reduce = table_.FindReduce(stage);
  const int32_t step = table_.FindStep(stage);
  if (!trains_) {
    const int32_t needless = std::max(reduce, step);
    if (needless == kNowhere) return true;
    return FailAt(
        rank, needless,
        "a schedule without backward passes has nothing to reduce or to step with; remove "
        "it");
  }
  const auto after_backward = [&] {
    return absl::StrCat("; it must come after ", NameOf(rank, last_backward));
  };
  if (reduce != kNowhere && reduce < last_backward) {
    return FailAt(rank, reduce, absl::StrCat("gradients are not complete yet", after_backward()));
  }
  if (step == kNowhere) {
    return FailFor({.op = Op::kStep, .stage = stage},
                   absl::StrCat("stage ", stage.value(), " has no STEP", after_backward(),
                                " (Lower adds it)"));
  }
  if (step < std::max(last_backward, reduce)) {
    return FailAt(rank, step,
                  step < last_backward
                      ? absl::StrCat("gradients are not complete yet", after_backward())
                      : absl::StrCat("it must come after ", NameOf(rank, reduce)));
  }
  return true;
}

bool Validator::CheckMicroBatchOrder(StageId stage, Op op) {
  for (MicroBatch mb(1); mb.value() < schedule_.num_micro_batches; ++mb) {
    if (!CheckBefore({.op = op, .stage = stage, .micro_batch = MicroBatch(mb.value() - 1)},
                     {.op = op, .stage = stage, .micro_batch = mb},
                     "gradients are summed in micro-batch order")) {
      return false;
    }
  }
  return true;
}

bool Validator::CheckComputeOrder() {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
      if (!CheckMicroBatch(stage, mb)) return false;
    }
    if (!trains_) continue;
    if (!CheckMicroBatchOrder(stage, Op::kBackwardInput) ||
        !CheckMicroBatchOrder(stage, Op::kBackwardWeight)) {
      return false;
    }
  }
  return true;
}

bool Validator::CheckMicroBatch(StageId stage, MicroBatch mb) {
  const StageId next(stage.value() + 1);
  const bool in_place = !schedule_.is_last(stage) && !schedule_.sends_to_next(stage);
  const Action forward{.op = Op::kForward, .stage = stage, .micro_batch = mb};
  const Action backward{.op = Op::kBackwardInput, .stage = stage, .micro_batch = mb};
  if (in_place && !CheckBefore(forward, {.op = Op::kForward, .stage = next, .micro_batch = mb},
                               "it reads the previous stage's output")) {
    return false;
  }
  if (!trains_) return true;
  if (!CheckBefore(forward, backward, "backward needs what forward has kept") ||
      !CheckBefore(backward, {.op = Op::kBackwardWeight, .stage = stage, .micro_batch = mb},
                   "W needs the gradients that B has kept")) {
    return false;
  }
  return !in_place || CheckBefore({.op = Op::kBackwardInput, .stage = next, .micro_batch = mb},
                                  backward, "it reads the gradient of the next stage's input");
}

bool Validator::CheckMovedStashes() {
  for (const std::vector<Action>& list : schedule_.actions) {
    for (const Action& action : list) {
      if (!MovesStash(action.op)) continue;
      if (!trains_) {
        return FailAt(action, "a schedule without backward passes keeps nothing; remove it");
      }
      const auto of = [&](Op op) {
        return Action{.op = op, .stage = action.stage, .micro_batch = action.micro_batch};
      };
      for (const Op op : {Op::kOffload, Op::kRelease, Op::kFetch}) {
        if (!CheckExists(of(op), "OFFLOAD, RELEASE and FETCH belong together")) return false;
      }
      if (!CheckBefore(of(Op::kForward), of(Op::kOffload), "it moves what forward has kept") ||
          !CheckBefore(of(Op::kOffload), of(Op::kRelease), "it waits until that is done") ||
          !CheckBefore(of(Op::kRelease), of(Op::kFetch), "only what has left can come back") ||
          !CheckBefore(of(Op::kFetch), of(Op::kBackwardInput), "it reads what FETCH brings back")) {
        return false;
      }
    }
  }
  return true;
}

bool Validator::CheckTransferOrder() {
  for (const std::vector<Action>& list : schedule_.actions) {
    for (const Action& action : list) {
      if (!IsTransfer(action.op)) continue;
      const Action compute{
          .op = ComputeOf(action.op), .stage = action.stage, .micro_batch = action.micro_batch};
      if (table_.Find(compute) == kNowhere) {
        return FailAt(action, "a schedule without backward passes has no gradients; remove it");
      }
      const bool in_order =
          IsSend(action.op)
              ? CheckBefore(compute, action, "a buffer is sent after it is filled")
              : CheckBefore(action, compute, "its input's receive must be posted first");
      if (!in_order) return false;
    }
  }
  return true;
}

bool Validator::CheckEveryTransferExists() {
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    if (!schedule_.sends_to_next(stage)) continue;
    for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
      for (const Op op : {Op::kSendActivation, Op::kReceiveGradient}) {
        if (!trains_ && op == Op::kReceiveGradient) continue;
        const Action transfer{.op = op, .stage = stage, .micro_batch = mb};
        for (const Action& end : {transfer, OtherEnd(transfer)}) {
          if (!CheckExists(
                  end,
                  "neighboring stages on different ranks exchange messages (Lower adds them)")) {
            return false;
          }
        }
      }
    }
  }
  return true;
}

// Since every message has one send and one receive, the orders of a pair agree if and only if the
// sends' positions ascend along the receives.
bool Validator::CheckMatching() {
  std::vector<int32_t> last_send(schedule_.actions.size());  // index: sending rank
  for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) {
    std::fill(last_send.begin(), last_send.end(), kNowhere);
    for (const Action& receive : schedule_.list_of(rank)) {
      if (!IsReceive(receive.op)) continue;
      const Rank peer = PeerOf(schedule_, receive);
      const int32_t send = table_.Find(OtherEnd(receive));
      int32_t& last = last_send[static_cast<size_t>(peer.value())];
      if (send < last) {
        return FailAt(receive,
                      absl::StrCat("out of order: it takes what ", NameOf(peer, send),
                                   " sends, but the receive before it from that peer takes the "
                                   "later ",
                                   NameOf(peer, last), "; receive in the order of the sends"));
      }
      last = send;
    }
  }
  return true;
}

bool Validator::CheckMatchingOfCollectives() {
  std::optional<Violation> violation = FindUnmatchedCollective(schedule_, table_);
  if (!violation.has_value()) return true;
  violation_ = *std::move(violation);
  return false;
}

bool Validator::CheckProgress() {
  std::vector<Wait> cycle = FindDeadlock(schedule_, table_);
  return cycle.empty() ||
         FailInCycle(std::move(cycle), "; post receives earlier or change the order");
}

bool Validator::CheckGroups() {
  const TransferGroups groups(schedule_);
  for (const TransferGroups::Group& group : groups.all()) {
    if (!CheckLanes(group) || !CheckOtherEnds(group, groups)) return false;
  }
  std::vector<Wait> cycle = FindDeadlockInGroups(schedule_, table_, groups);
  return cycle.empty() ||
         FailInCycle(std::move(cycle),
                     ", where transfers are performed in groups, one after the other on each rank, "
                     "and a group waits for all that its messages connect; join transfers where "
                     "both ends do (Lower does for grouped transfers) or change the order");
}

// Checks that no lane has two sends in one group: the buffer of a send is free again behind the
// next one on its lane, which in one group would be before the first is done.
bool Validator::CheckLanes(const TransferGroups::Group& group) {
  std::set<std::pair<Op, StageId>> lanes;
  for (size_t i = group.begin; i < group.end; ++i) {
    const Action& action = schedule_.list_of(group.rank)[i];
    if (!IsSend(action.op) || lanes.emplace(action.op, action.stage).second) continue;
    return FailAt(action,
                  "a second send on its lane within one group of transfers; a computation must "
                  "stand between the two");
  }
  return true;
}

bool Validator::CheckOtherEnds(const TransferGroups::Group& group, const TransferGroups& groups) {
  std::map<Rank, std::pair<int32_t, size_t>> there;  // peer: its group, and our first message of it
  for (size_t i = group.begin; i < group.end; ++i) {
    const Action& action = schedule_.list_of(group.rank)[i];
    if (IsCollective(action.op)) continue;
    const Rank peer = PeerOf(schedule_, action);
    const int32_t other = groups.At(peer, table_.Find(OtherEnd(action)));
    const auto [group_there, place] = there.try_emplace(peer, other, i).first->second;
    if (group_there == other) continue;
    return FailAt(
        action,
        absl::StrCat("it is in one group with ", NameOf(group.rank, static_cast<int32_t>(place)),
                     ", and their other ends, on rank ", peer.value(),
                     ", are in two groups; a group is one moment for both ends of its messages, so "
                     "join the two on both ranks or on neither"));
  }
  return true;
}

}  // namespace

std::optional<Violation> FindViolation(const Schedule& lowered, Transfers transfers) {
  Violation violation;
  const std::optional<ActionTable> table = ActionTable::Build(lowered, violation);
  if (!table.has_value()) return violation;
  Validator validator(lowered, *table);
  if (validator.CheckAll(transfers)) return std::nullopt;
  return validator.violation();
}

absl::Status Validate(const Schedule& lowered, Transfers transfers) {
  const std::optional<Violation> violation = FindViolation(lowered, transfers);
  return violation.has_value() ? ToStatus(lowered, *violation) : absl::OkStatus();
}

}  // namespace stagecoach::schedule
