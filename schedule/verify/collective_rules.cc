#include "schedule/verify/collective_rules.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace stagecoach::schedule {
namespace {

constexpr int32_t kAbsent = ActionTable::kNowhere;

const Action& ActionAt(const Schedule& schedule, Rank rank, int32_t position) {
  return schedule.list_of(rank)[static_cast<size_t>(position)];
}

std::string NameAt(const Schedule& schedule, Rank rank, int32_t position) {
  return ToString(ActionAt(schedule, rank, position));
}

// Returns "NORM of group 0, "all"".
std::string NameOf(Op collective, GroupId group, const Schedule& schedule) {
  return absl::StrCat(ToString(Collective(collective, group)), ", \"", schedule.group(group).name,
                      "\"");
}

// Returns the last action of `stage` that a collective must come after.
int32_t LastBefore(const Schedule& schedule, const ActionTable& table, Op collective,
                   StageId stage) {
  const bool takes_gradients = TakesGradients(collective);
  if (!takes_gradients && !schedule.is_last(stage)) return kAbsent;
  int32_t last = takes_gradients ? table.FindReduce(stage) : kAbsent;
  // A last layer may compute the loss in B.
  const Op completing = takes_gradients          ? Op::kBackwardWeight
                        : schedule.HasBackward() ? Op::kBackwardInput
                                                 : Op::kForward;
  for (MicroBatch mb(0); mb.value() < schedule.num_micro_batches; ++mb) {
    last = std::max(last, table.Find(completing, stage, mb));
  }
  return last;
}

// Checks that a NORM at `position` of the rank's list uses the gradients as TIES leaves them.
std::optional<Violation> CheckTiesBefore(const Schedule& schedule, Rank rank, int32_t position) {
  const std::vector<Action>& list = schedule.list_of(rank);
  const auto ties = std::find_if(list.begin() + position, list.end(),
                                 [](const Action& action) { return action.op == Op::kSumTies; });
  if (ties == list.end()) return std::nullopt;
  return ViolationAt(
      schedule, rank, position,
      absl::StrCat("it must come after ", ToString(*ties), ", which completes the gradients"));
}

// Checks the place of the collective at `position` of the rank's list among the rank's actions.
std::optional<Violation> CheckPlace(const Schedule& schedule, const ActionTable& table, Rank rank,
                                    int32_t position) {
  const Op op = ActionAt(schedule, rank, position).op;
  const bool takes_gradients = TakesGradients(op);
  if (takes_gradients && !schedule.HasBackward()) {
    return ViolationAt(schedule, rank, position,
                       "a schedule without backward passes has no gradients; remove it");
  }
  if (op == Op::kExchangeNorms) {
    if (auto violation = CheckTiesBefore(schedule, rank, position)) return violation;
  }
  for (const StageId stage : schedule.StagesOf(rank)) {
    const int32_t last = LastBefore(schedule, table, op, stage);
    if (last > position) {
      return ViolationAt(
          schedule, rank, position,
          absl::StrCat(takes_gradients ? "gradients" : "the results",
                       " are not complete yet; it must come after ", NameAt(schedule, rank, last)));
    }
    if (takes_gradients && table.FindStep(stage) < position) {
      return ViolationAt(
          schedule, rank, position,
          absl::StrCat(
              "it must come before ", NameAt(schedule, rank, table.FindStep(stage)),
              op == Op::kSumTies ? ", which updates by the sums" : ", which clips by the norm"));
    }
  }
  return std::nullopt;
}

// Checks, for the first collective of its kind, that all ranks perform it, in the same group.
std::optional<Violation> CheckGroup(const Schedule& schedule, const ActionTable& table, Rank rank,
                                    int32_t position) {
  const Action& collective = ActionAt(schedule, rank, position);
  const CollectiveGroup& group = schedule.group(collective.group);
  const std::string here = absl::StrCat("rank ", rank.value(), " performs ",
                                        NameOf(collective.op, collective.group, schedule));
  for (size_t member = 0; member < group.ranks.size(); ++member) {
    if (table.FindCollective(collective.op, collective.group, member) != kAbsent) continue;
    const Rank without = group.ranks[member];
    const std::vector<Action>& list = schedule.list_of(without);
    const auto other = std::find_if(
        list.begin(), list.end(), [&](const Action& action) { return action.op == collective.op; });
    if (other != list.end()) {
      return ViolationAt(schedule, without, static_cast<int32_t>(other - list.begin()),
                         absl::StrCat("another group: ", here, "; name the same on all ranks"));
    }
    Violation violation;
    violation.rank = without;
    violation.action = collective;
    violation.reason = absl::StrCat(ToString(collective), " is missing; ", here,
                                    ", and every rank of a group performs its collectives");
    return violation;
  }
  if (static_cast<int>(group.ranks.size()) == schedule.num_ranks()) return std::nullopt;
  return ViolationAt(schedule, rank, position,
                     absl::StrCat("its group, \"", group.name, "\", has ", group.ranks.size(),
                                  " of the ", schedule.num_ranks(), " ranks, and needs all"));
}

// Checks the collectives of one rank's list among the messages that it receives. Rule 5 ensures
// that no message is sent before a collective and received after it.
std::optional<Violation> CheckPairs(const Schedule& schedule, const ActionTable& table, Rank rank) {
  // Index: the other rank. Position in its list of the send whose message was received last.
  std::vector<int32_t> last_send(schedule.actions.size(), kAbsent);
  const std::vector<Action>& list = schedule.list_of(rank);
  for (size_t i = 0; i < list.size(); ++i) {
    if (IsReceive(list[i].op)) {
      const Rank peer = PeerOf(schedule, list[i]);
      last_send[static_cast<size_t>(peer.value())] = table.Find(OtherEnd(list[i]));
    }
    if (!IsCollective(list[i].op)) continue;
    const std::vector<Rank>& members = schedule.group(list[i].group).ranks;
    for (size_t member = 0; member < members.size(); ++member) {
      const int peer = members[member].value();
      const int32_t send = last_send[static_cast<size_t>(peer)];
      if (table.FindCollective(list[i].op, list[i].group, member) > send) continue;
      return ViolationAt(schedule, rank, static_cast<int32_t>(i),
                         absl::StrCat("out of order: the receive of what ",
                                      NameAt(schedule, members[member], send),
                                      " sends stands before it, but rank ", peer,
                                      " sends that after it; post the receive later"));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Violation> FindMisplacedCollective(const Schedule& lowered,
                                                 const ActionTable& table) {
  std::array<GroupId, kNumCollectiveOps> group_of_first;
  for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
    const std::vector<Action>& list = lowered.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!IsCollective(list[i].op)) continue;
      const auto position = static_cast<int32_t>(i);
      if (auto violation = CheckPlace(lowered, table, rank, position)) return violation;
      GroupId& first = group_of_first[CollectiveIndex(list[i].op)];
      if (!first.valid()) {
        first = list[i].group;
        if (auto violation = CheckGroup(lowered, table, rank, position)) return violation;
      }
      if (list[i].group == first) continue;
      return ViolationAt(lowered, rank, position,
                         absl::StrCat("every rank performs ", NameOf(list[i].op, first, lowered),
                                      " already; remove it"));
    }
  }
  return std::nullopt;
}

std::optional<Violation> FindUnmatchedCollective(const Schedule& lowered,
                                                 const ActionTable& table) {
  if (lowered.groups.empty()) return std::nullopt;
  for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
    if (auto violation = CheckPairs(lowered, table, rank)) return violation;
  }
  return std::nullopt;
}

}  // namespace stagecoach::schedule
