#include "tests/schedule/perform_groups.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/nccl_batches.h"

namespace stagecoach::schedule {
namespace {

using testing::NcclEnd;
using testing::NcclPlace;

struct Group {
  size_t begin = 0, end = 0;      // positions
  std::vector<NcclPlace> places;  // of its transfers
  size_t passed_count = 0;
};

struct RankState {
  const std::vector<Action>* list = nullptr;
  std::vector<Group> groups;
  std::vector<size_t> group_at;  // index: position of a transfer
  std::vector<size_t> needed;    // index: position; groups to be done before the action
  std::vector<bool> passed;      // index: position of a transfer
  size_t next = 0;               // index of the next action
  size_t started = 0;            // number of groups
  size_t done = 0;               // number of groups
};

class Performer {
 public:
  Performer(const Schedule& schedule, GroupRule rule) : schedule_(schedule), rule_(rule) {
    for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) AddRank(rank);
  }

  bool EveryRankEnds(std::mt19937& random) {
    for (bool patient = false, moved = true; moved || !patient;) {
      patient = !moved;  // no rank holds back until nothing moves
      moved = false;
      for (size_t i = 0; i < 2 * ranks_.size(); ++i) {
        const size_t rank = patient ? i / 2 : random() % ranks_.size();
        moved |= Perform(ranks_[rank]);
        if (patient || random() % 2 == 0) moved |= Start(ranks_[rank]);
        if (patient || random() % 2 == 0) moved |= Pass(rank);
        if (patient || random() % 2 == 0) moved |= End(ranks_[rank]);
      }
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& state) {
      return state.next == state.list->size() && state.done == state.groups.size();
    });
  }

 private:
  void AddRank(Rank rank);
  size_t NeededAt(const RankState& state, size_t position) const;

  static bool Perform(RankState& state) {
    if (state.next == state.list->size() || state.done < state.needed[state.next]) return false;
    ++state.next;
    return true;
  }
  static bool Start(RankState& state) {
    if (state.started > state.done || state.done == state.groups.size()) return false;
    if (state.next < state.groups[state.done].end) return false;
    ++state.started;
    return true;
  }
  static bool End(RankState& state) {
    if (state.started == state.done) return false;
    const Group& group = state.groups[state.done];
    if (group.passed_count < group.end - group.begin) return false;
    ++state.done;
    return true;
  }
  bool Pass(size_t rank);

  // Returns the other end of the transfer at `position`: its rank and position.
  std::pair<size_t, size_t> OtherEndOf(size_t rank, size_t position) const {
    const Action other = OtherEnd((*ranks_[rank].list)[position]);
    const auto peer = static_cast<size_t>(schedule_.rank_of(other.stage).value());
    return {peer, place_of_.at(other)};
  }
  // Returns true if everything in the batches before the transfer's has passed.
  bool IsTurnOf(const RankState& state, size_t position) const;
  bool AllOfItsMomentHaveStarted(size_t rank, size_t group) const;

  const Schedule& schedule_;
  const GroupRule rule_;
  std::vector<RankState> ranks_;
  std::map<Action, size_t> place_of_;  // index: each transfer, as OtherEnd returns it
};

void Performer::AddRank(Rank rank) {
  RankState& state = ranks_.emplace_back();
  const std::vector<Action>& list = schedule_.list_of(rank);
  state.list = &list;
  state.group_at.resize(list.size());
  state.passed.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (IsTransfer(list[i].op)) {
      const bool is_joined = i > 0 && list[i - 1].overlaps_next;
      if (!is_joined) state.groups.push_back({.begin = i});
      state.groups.back().end = i + 1;
      state.group_at[i] = state.groups.size() - 1;
      place_of_[Alone(list[i])] = i;
    }
    state.needed.push_back(NeededAt(state, i));
  }
  for (Group& group : state.groups) {
    std::vector<NcclEnd> ends;
    for (size_t i = group.begin; i < group.end; ++i) {
      ends.push_back({IsSend(list[i].op), PeerOf(schedule_, list[i]).value()});
    }
    group.places =
        testing::NcclPlaces(ends, rank.value(), schedule_.num_ranks(), std::max(rule_.channels, 1));
  }
}

size_t Performer::NeededAt(const RankState& state, size_t position) const {
  const Action& action = (*state.list)[position];
  if (IsTransfer(action.op)) return 0;
  const std::optional<Action> receive = ReceiveBefore(schedule_, action);
  size_t needed = 0;
  std::map<std::pair<Op, StageId>, size_t> last;  // group of the last send of each lane
  for (size_t i = 0; i < position; ++i) {
    const Action& before = (*state.list)[i];
    if (!IsTransfer(before.op)) continue;
    if (Alone(before) == receive) needed = std::max(needed, state.group_at[i] + 1);
    if (!IsSend(before.op)) continue;
    const auto [lane, is_new] = last.insert({{before.op, before.stage}, state.group_at[i]});
    if (!is_new) needed = std::max(needed, lane->second + 1);
    lane->second = state.group_at[i];
  }
  return needed;
}

bool Performer::IsTurnOf(const RankState& state, size_t position) const {
  const size_t number = state.group_at[position];
  if (number != state.done || state.started == state.done) return false;
  const Group& group = state.groups[number];
  const NcclPlace& own = group.places[position - group.begin];
  for (size_t i = group.begin; i < group.end; ++i) {
    const NcclPlace& other = group.places[i - group.begin];
    if (other.channel == own.channel && other.batch < own.batch && !state.passed[i]) return false;
  }
  return true;
}

bool Performer::AllOfItsMomentHaveStarted(size_t rank, size_t group) const {
  std::set<std::pair<size_t, size_t>> seen = {{rank, group}};
  std::vector<std::pair<size_t, size_t>> left = {{rank, group}};
  while (!left.empty()) {
    const auto [at, number] = left.back();
    left.pop_back();
    if (ranks_[at].started <= number) return false;
    const Group& connected = ranks_[at].groups[number];
    for (size_t i = connected.begin; i < connected.end; ++i) {
      const auto [peer, place] = OtherEndOf(at, i);
      const std::pair<size_t, size_t> other = {peer, ranks_[peer].group_at[place]};
      if (seen.insert(other).second) left.push_back(other);
    }
  }
  return true;
}

bool Performer::Pass(size_t rank) {
  RankState& state = ranks_[rank];
  if (state.started == state.done) return false;
  Group& group = state.groups[state.done];
  if (rule_.channels == 0 && !AllOfItsMomentHaveStarted(rank, state.done)) return false;
  for (size_t i = group.begin; i < group.end; ++i) {
    const auto [peer, place] = OtherEndOf(rank, i);
    RankState& other = ranks_[peer];
    if (state.passed[i]) continue;
    if (rule_.channels > 0 && !(IsTurnOf(state, i) && IsTurnOf(other, place))) continue;
    state.passed[i] = other.passed[place] = true;
    ++group.passed_count;
    ++other.groups[other.group_at[place]].passed_count;
    return true;
  }
  return false;
}

}  // namespace

bool EveryRankEnds(const Schedule& lowered, GroupRule rule, std::mt19937& random) {
  return Performer(lowered, rule).EveryRankEnds(random);
}

Schedule WithLargestGroups(Schedule lowered) {
  for (std::vector<Action>& list : lowered.actions) {
    for (auto begin = list.begin(); begin != list.end();) {
      const auto end = std::find_if_not(begin, list.end(),
                                        [](const Action& action) { return IsTransfer(action.op); });
      std::stable_partition(begin, end, [](const Action& action) { return IsReceive(action.op); });
      for (auto it = begin; it != end; ++it) it->overlaps_next = it + 1 != end;
      begin = end == list.end() ? end : end + 1;
    }
  }
  return lowered;
}

}  // namespace stagecoach::schedule
