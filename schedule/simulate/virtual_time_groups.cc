// VirtualTime's transfers in groups (Transfers::kGrouped). Groups of a rank are done in order, so
// the number of groups that are done tells for each whether it is.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "schedule/simulate/virtual_time.h"

namespace stagecoach::schedule {

void VirtualTime::PostGroup(Rank rank) {
  const std::vector<Action>& list = schedule_.list_of(rank);
  RankState& state = StateOf(rank);
  Group group;
  group.begin = state.next;
  group.posted_ns = state.clock_ns;
  const auto number = static_cast<int32_t>(state.groups.size()) + 1;
  group.end = EndOfGroup(list, group.begin);
  for (; state.next < group.end; ++state.next) {
    const Action& action = list[state.next];
    Record(rank, action, group.posted_ns, group.posted_ns);
    const Transfer transfer = TransferOf(action);
    if (IsReceive(action.op)) {
      transfer.message.receiving_group = number;
      continue;
    }
    // Later actions may reuse the buffer of the previous send on this lane.
    const InTransit*& last = transfer.lane.last;
    if (last != nullptr) state.groups_awaited = std::max(state.groups_awaited, last->sending_group);
    transfer.message.sending_group = number;
    last = &transfer.message;
  }
  group.left = group.end - group.begin;
  state.groups.push_back(group);
  PerformGroups(rank);
}

void VirtualTime::PerformGroups(Rank first) {
  std::vector<Rank> touched = {first};
  while (!touched.empty()) {
    const Rank rank = touched.back();
    RankState& state = StateOf(rank);
    const bool in_progress = state.groups_started > state.groups_done;
    if (in_progress && state.groups[static_cast<size_t>(state.groups_done)].left == 0) {
      ++state.groups_done;
      Wake(rank);
    } else if (!in_progress && static_cast<size_t>(state.groups_started) < state.groups.size()) {
      StartGroup(rank, touched);
    } else {
      touched.pop_back();
    }
  }
}

void VirtualTime::StartGroup(Rank rank, std::vector<Rank>& touched) {
  const std::vector<Action>& list = schedule_.list_of(rank);
  RankState& state = StateOf(rank);
  const Group& group = state.groups[static_cast<size_t>(state.groups_started)];
  const int64_t start_ns = std::max(group.posted_ns, DoneNs(rank, state.groups_done));
  ++state.groups_started;
  const auto pair_ns = [this](const Action& action) -> int64_t& {
    return pair_ns_[2 * IndexOf(PeerOf(schedule_, action)) + (IsReceive(action.op) ? 1 : 0)];
  };
  for (size_t i = group.begin; i < group.end; ++i) pair_ns(list[i]) = 0;
  for (size_t i = group.begin; i < group.end; ++i) {
    const auto [message, lane] = TransferOf(list[i]);
    int64_t& own_ns = IsSend(list[i].op) ? message.sent_ns : message.posted_ns;
    if (own_ns != kNotYet) continue;  // a transfer that appears twice never passes
    own_ns = start_ns;
    if (message.sent_ns == kNotYet || message.posted_ns == kNotYet) continue;
    // Two messages of one pair of ranks that start here have both ends in the same two groups:
    // otherwise the peer's later group would have waited for the earlier one.
    int64_t& before_ns = pair_ns(list[i]);
    message.arrival_ns = std::max({message.sent_ns, message.posted_ns, before_ns}) + lane.ns;
    before_ns = message.arrival_ns;
    const Rank peer = PeerOf(schedule_, list[i]);
    Pass(rank, message.arrival_ns);
    Pass(peer, message.arrival_ns);
    touched.push_back(peer);
  }
}

void VirtualTime::Pass(Rank rank, int64_t arrival_ns) {
  RankState& state = StateOf(rank);
  Group& group = state.groups[static_cast<size_t>(state.groups_started) - 1];
  group.end_ns = std::max(group.end_ns, arrival_ns);
  --group.left;
}

int64_t VirtualTime::DoneNs(Rank rank, int32_t count) const {
  if (count == 0) return 0;
  const RankState& state = StateOf(rank);
  if (count > state.groups_done) return kNotYet;
  return state.groups[static_cast<size_t>(count) - 1].end_ns;
}

}  // namespace stagecoach::schedule
