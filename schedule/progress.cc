#include "schedule/progress.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace stagecoach::schedule {
namespace {

// The shortest cycle of waits. `Ranks` says what each rank waits for: ForEachWait(rank, function),
// and CollectiveBefore(rank), the collective before which it stands if it stands before one.
template <typename Ranks>
class CycleSearch {
 public:
  CycleSearch(const Ranks& ranks, size_t num_ranks) : ranks_(ranks), num_ranks_(num_ranks) {}

  std::vector<Wait> Shortest() const {
    std::vector<Wait> shortest;
    for (size_t start = 0; start < num_ranks_; ++start) {
      std::vector<Wait> cycle = ShortestThrough(Rank(static_cast<int32_t>(start)));
      if (!cycle.empty() && (shortest.empty() || cycle.size() < shortest.size())) {
        shortest = std::move(cycle);
      }
    }
    return shortest;
  }

 private:
  // Breadth first.
  std::vector<Wait> ShortestThrough(Rank start) const {
    std::vector<std::optional<Wait>> led_to(num_ranks_);  // index: rank
    std::vector<Rank> queue = {start};
    std::set<Action> collectives;  // all that stand before one wait for the same ranks
    for (size_t next = 0; next < queue.size(); ++next) {
      const std::optional<Action> collective = ranks_.CollectiveBefore(queue[next]);
      if (collective.has_value() && !collectives.insert(*collective).second) continue;
      ranks_.ForEachWait(queue[next], [&](const Wait& wait) {
        std::optional<Wait>& before = led_to[static_cast<size_t>(wait.peer.value())];
        if (before.has_value()) return;
        before = wait;
        queue.push_back(wait.peer);
      });
      if (led_to[static_cast<size_t>(start.value())].has_value()) return CycleTo(start, led_to);
    }
    return {};
  }

  static std::vector<Wait> CycleTo(Rank start, const std::vector<std::optional<Wait>>& led_to) {
    std::vector<Wait> cycle = {*led_to[static_cast<size_t>(start.value())]};
    while (cycle.back().rank != start) {
      cycle.push_back(*led_to[static_cast<size_t>(cycle.back().rank.value())]);
    }
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  const Ranks& ranks_;
  const size_t num_ranks_;
};

// Calls function(Wait) for each other rank of the group of a collective, which stands at `position`
// of the list of `rank`: what it does there needs them.
template <typename Function>
void ForEachMember(const Schedule& schedule, const ActionTable& table, Rank rank, int32_t position,
                   Function function) {
  const Action& collective = schedule.list_of(rank)[static_cast<size_t>(position)];
  const std::vector<Rank>& members = schedule.group(collective.group).ranks;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank) continue;
    function(
        Wait{rank, position, members[i], table.FindCollective(collective.op, collective.group, i)});
  }
}

class Rendezvous {
 public:
  Rendezvous(const Schedule& schedule, const ActionTable& table)
      : schedule_(schedule),
        table_(table),
        next_(schedule.actions.size(), 0),
        arrived_at_(schedule.actions.size(), -1) {}

  // Lets every rank go as far as it can.
  void Run() {
    for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const Rank rank = ready_.back();
      ready_.pop_back();
      RunRank(rank);
    }
  }

  // For CycleSearch.
  std::optional<Action> CollectiveBefore(Rank rank) const {
    if (AtEnd(rank) || !IsCollective(NextAction(rank).op)) return std::nullopt;
    return NextAction(rank);
  }
  template <typename Function>
  void ForEachWait(Rank rank, Function function) const;

 private:
  size_t IndexOf(Rank rank) const { return static_cast<size_t>(rank.value()); }
  int32_t NextOf(Rank rank) const { return next_[IndexOf(rank)]; }
  bool AtEnd(Rank rank) const {
    return static_cast<size_t>(NextOf(rank)) == schedule_.list_of(rank).size();
  }
  const Action& NextAction(Rank rank) const {
    return schedule_.list_of(rank)[static_cast<size_t>(NextOf(rank))];
  }

  std::optional<Wait> WaitOf(Rank rank) const;
  bool MayGoOn(Rank rank);
  void RunRank(Rank rank);

  const Schedule& schedule_;
  const ActionTable& table_;
  std::vector<int32_t> next_;  // index: rank; position of the first action not yet performed
  std::vector<Rank> ready_;
  // How many ranks have come to each collective.
  absl::flat_hash_map<std::pair<Op, GroupId>, size_t> arrivals_;
  std::vector<int32_t> arrived_at_;  // index: rank; position of the collective it came to last
};

// The rank on which what `rank` needs for its next action, which is no collective, has not been
// performed. Pre-condition: it is not at the end.
std::optional<Wait> Rendezvous::WaitOf(Rank rank) const {
  const Action& action = NextAction(rank);
  // The one on this rank whose other end must have been performed.
  const std::optional<Action> transfer =
      IsSend(action.op) ? action : ReceiveBefore(schedule_, action);
  if (!transfer.has_value()) return std::nullopt;
  const Action other = OtherEnd(*transfer);
  const Rank peer = schedule_.rank_of(other.stage);
  const int32_t peer_position = table_.Find(other);
  if (NextOf(peer) > peer_position) return std::nullopt;
  return Wait{rank, NextOf(rank), peer, peer_position};
}

template <typename Function>
void Rendezvous::ForEachWait(Rank rank, Function function) const {
  if (AtEnd(rank)) return;
  if (!IsCollective(NextAction(rank).op)) {
    if (const std::optional<Wait> wait = WaitOf(rank)) function(*wait);
    return;
  }
  ForEachMember(schedule_, table_, rank, NextOf(rank), [&](const Wait& wait) {
    if (NextOf(wait.peer) < wait.peer_position) function(wait);
  });
}

// Notes that a rank has come to a collective, once.
bool Rendezvous::MayGoOn(Rank rank) {
  const Action& action = NextAction(rank);
  if (!IsCollective(action.op)) return !WaitOf(rank).has_value();
  const std::vector<Rank>& members = schedule_.group(action.group).ranks;
  size_t& arrivals = arrivals_[{action.op, action.group}];
  if (arrived_at_[IndexOf(rank)] != NextOf(rank)) {
    arrived_at_[IndexOf(rank)] = NextOf(rank);
    if (++arrivals == members.size()) ready_.insert(ready_.end(), members.begin(), members.end());
  }
  return arrivals == members.size();
}

void Rendezvous::RunRank(Rank rank) {
  while (!AtEnd(rank) && MayGoOn(rank)) {
    const Action& action = NextAction(rank);
    ++next_[IndexOf(rank)];
    if (!IsTransfer(action.op)) continue;
    // Only the peer can have waited for a transfer, and it did so with its next action.
    const Action other = OtherEnd(action);
    const Rank peer = schedule_.rank_of(other.stage);
    if (AtEnd(peer)) continue;
    const Action& waiting = NextAction(peer);
    if (waiting.stage == other.stage && waiting.micro_batch == other.micro_batch) {
      ready_.push_back(peer);
    }
  }
}

// Each rank has one group in progress, the next one that it has not done. A collective is a group
// by itself, of a message to each of the other ranks.
class Groups {
 public:
  Groups(const Schedule& schedule, const ActionTable& table)
      : schedule_(schedule), table_(table), current_(schedule.actions.size()) {}

  // Lets every rank go as far as it can.
  void Run() {
    for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) StartNext(rank);
    while (!done_.empty()) {
      const Rank rank = done_.back();
      done_.pop_back();
      StartNext(rank);
    }
  }

  // For CycleSearch.
  std::optional<Action> CollectiveBefore(Rank rank) const;
  template <typename Function>
  void ForEachWait(Rank rank, Function function) const;

 private:
  // Positions in its rank's list; empty at the end of the list.
  struct Group {
    size_t begin = 0;
    size_t end = 0;
    size_t left = 0;  // messages that have not passed
    bool Has(size_t position) const { return begin <= position && position < end; }
  };

  Group& CurrentOf(Rank rank) { return current_[static_cast<size_t>(rank.value())]; }
  const Group& CurrentOf(Rank rank) const { return current_[static_cast<size_t>(rank.value())]; }
  // Calls function(Wait) for the other end of each message of the rank's group.
  template <typename Function>
  void ForEachMessage(Rank rank, Function function) const;
  // The end on the peer is in a group that it has not started.
  bool IsBlocked(const Wait& wait) const {
    return static_cast<size_t>(wait.peer_position) >= CurrentOf(wait.peer).end;
  }

  void StartNext(Rank rank);

  const Schedule& schedule_;
  const ActionTable& table_;
  std::vector<Group> current_;  // index: rank
  std::vector<Rank> done_;      // ranks whose group is
};

template <typename Function>
void Groups::ForEachMessage(Rank rank, Function function) const {
  const Group& group = CurrentOf(rank);
  for (size_t i = group.begin; i < group.end; ++i) {
    const Action& action = schedule_.list_of(rank)[i];
    const auto position = static_cast<int32_t>(i);
    if (IsCollective(action.op)) {
      ForEachMember(schedule_, table_, rank, position, function);
    } else {
      const Action other = OtherEnd(action);
      function(Wait{rank, position, schedule_.rank_of(other.stage), table_.Find(other)});
    }
  }
}

void Groups::StartNext(Rank rank) {
  const std::vector<Action>& list = schedule_.list_of(rank);
  Group& group = CurrentOf(rank);
  const auto is_transfer = [](const Action& action) { return IsTransfer(action.op); };
  const auto begin = std::find_if(
      list.begin() + static_cast<ptrdiff_t>(group.end), list.end(),
      [](const Action& action) { return IsTransfer(action.op) || IsCollective(action.op); });
  const bool is_collective = begin != list.end() && IsCollective(begin->op);
  const auto end = is_collective ? begin + 1 : std::find_if_not(begin, list.end(), is_transfer);
  group.begin = static_cast<size_t>(begin - list.begin());
  group.end = static_cast<size_t>(end - list.begin());
  group.left = 0;
  ForEachMessage(rank, [&](const Wait&) { ++group.left; });
  ForEachMessage(rank, [&](const Wait& wait) {
    Group& other = CurrentOf(wait.peer);
    if (!other.Has(static_cast<size_t>(wait.peer_position))) return;
    --group.left;
    if (--other.left == 0) done_.push_back(wait.peer);
  });
  if (group.left == 0 && group.begin < group.end) done_.push_back(rank);
}

std::optional<Action> Groups::CollectiveBefore(Rank rank) const {
  const size_t begin = CurrentOf(rank).begin;
  const std::vector<Action>& list = schedule_.list_of(rank);
  if (begin == list.size() || !IsCollective(list[begin].op)) return std::nullopt;
  return list[begin];
}

// Those whose other ends have not been started.
template <typename Function>
void Groups::ForEachWait(Rank rank, Function function) const {
  ForEachMessage(rank, [&](const Wait& wait) {
    if (IsBlocked(wait)) function(wait);
  });
}

}  // namespace

std::vector<Wait> FindDeadlockInGroups(const Schedule& lowered, const ActionTable& table) {
  Groups groups(lowered, table);
  groups.Run();
  return CycleSearch(groups, lowered.actions.size()).Shortest();
}

std::vector<Wait> FindDeadlock(const Schedule& lowered, const ActionTable& table) {
  Rendezvous rendezvous(lowered, table);
  rendezvous.Run();
  return CycleSearch(rendezvous, lowered.actions.size()).Shortest();
}

}  // namespace stagecoach::schedule
