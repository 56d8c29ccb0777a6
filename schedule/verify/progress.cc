#include "schedule/verify/progress.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace stagecoach::schedule {
namespace {

// Finds the shortest cycle of waits. `Ranks` says what each rank waits for: ForEachWait(rank,
// function), and CollectiveBefore(rank), the collective before which it stands, if any. A wait for
// a rank that has reached the same moment, and is left waiting there itself, does not make a
// deadlock alone: IsBlocked(wait) is false for it, and each cycle has a wait for which it is true.
template <typename Ranks>
class CycleSearch {
 public:
  CycleSearch(const Ranks& ranks, size_t num_ranks) : ranks_(ranks), num_ranks_(num_ranks) {}

  std::vector<Wait> Shortest() const {
    std::vector<std::vector<Wait>> blocked(num_ranks_);  // index: the peer
    for (size_t rank = 0; rank < num_ranks_; ++rank) {
      ranks_.ForEachWait(Rank(static_cast<int32_t>(rank)), [&](const Wait& wait) {
        if (ranks_.IsBlocked(wait)) blocked[IndexOf(wait.peer)].push_back(wait);
      });
    }
    std::vector<Wait> shortest;
    for (size_t peer = 0; peer < num_ranks_; ++peer) {
      if (blocked[peer].empty()) continue;
      const Ways ways = WaysFrom(Rank(static_cast<int32_t>(peer)));
      for (const Wait& wait : blocked[peer]) {
        std::vector<Wait> cycle = CycleBy(wait, ways);
        const bool is_shorter = shortest.empty() || cycle.size() < shortest.size();
        if (!cycle.empty() && is_shorter) shortest = std::move(cycle);
      }
    }
    return FromLowestRank(std::move(shortest));
  }

 private:
  using Ways = std::vector<std::optional<Wait>>;  // index: rank; the wait that led to it

  static size_t IndexOf(Rank rank) { return static_cast<size_t>(rank.value()); }

  // Breadth first.
  Ways WaysFrom(Rank start) const {
    Ways ways(num_ranks_);
    std::vector<Rank> queue = {start};
    std::set<Action> collectives;  // all ranks that stand before one wait for the same ranks
    for (size_t next = 0; next < queue.size(); ++next) {
      const std::optional<Action> collective = ranks_.CollectiveBefore(queue[next]);
      if (collective.has_value() && !collectives.insert(*collective).second) continue;
      ranks_.ForEachWait(queue[next], [&](const Wait& wait) {
        std::optional<Wait>& way = ways[IndexOf(wait.peer)];
        if (way.has_value() || wait.peer == start) return;
        way = wait;
        queue.push_back(wait.peer);
      });
    }
    return ways;
  }

  // Returns the cycle of `wait` and the shortest way back; empty if there is none.
  static std::vector<Wait> CycleBy(const Wait& wait, const Ways& from_peer) {
    std::vector<Wait> cycle;
    for (Rank rank = wait.rank; rank != wait.peer; rank = cycle.back().rank) {
      if (!from_peer[IndexOf(rank)].has_value()) return {};
      cycle.push_back(*from_peer[IndexOf(rank)]);
    }
    cycle.push_back(wait);
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  static std::vector<Wait> FromLowestRank(std::vector<Wait> cycle) {
    std::rotate(cycle.begin(),
                std::min_element(cycle.begin(), cycle.end(),
                                 [](const Wait& a, const Wait& b) { return a.rank < b.rank; }),
                cycle.end());
    return cycle;
  }

  const Ranks& ranks_;
  const size_t num_ranks_;
};

// Calls function(Wait) for each other rank of the group of a collective, which stands at `position`
// of the list of `rank`: the ranks that it needs there.
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

  // Called by CycleSearch.
  std::optional<Action> CollectiveBefore(Rank rank) const {
    if (AtEnd(rank) || !IsCollective(NextAction(rank).op)) return std::nullopt;
    return NextAction(rank);
  }
  template <typename Function>
  void ForEachWait(Rank rank, Function function) const;
  static bool IsBlocked(const Wait& /*wait*/) { return true; }

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
  // Number of ranks that have reached each collective.
  absl::flat_hash_map<std::pair<Op, GroupId>, size_t> arrivals_;
  std::vector<int32_t> arrived_at_;  // index: rank; position of the collective it reached last
};

// Returns the wait of `rank` for what its next action, which is no collective, needs and another
// rank has not performed. Pre-condition: `rank` is not at the end.
std::optional<Wait> Rendezvous::WaitOf(Rank rank) const {
  const Action& action = NextAction(rank);
  // The transfer on this rank whose other end must have been performed.
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

// Returns true if the rank's next action may run. Records that a rank has reached a collective,
// once.
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

// Groups that messages connect are one moment, which passes once all of them have started.
class Moments {
 public:
  Moments(const Schedule& schedule, const ActionTable& table, const TransferGroups& groups);

  // Lets every rank go as far as it can.
  void Run() {
    for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) Start(CurrentOf(rank), rank);
    while (!passed_.empty()) {
      const size_t moment = passed_.back();
      passed_.pop_back();
      for (const int32_t group : groups_of_[moment]) {
        const Rank rank = groups_.all()[static_cast<size_t>(group)].rank;
        Start(++CurrentOf(rank), rank);
      }
    }
  }

  // Called by CycleSearch.
  std::optional<Action> CollectiveBefore(Rank rank) const;
  template <typename Function>
  void ForEachWait(Rank rank, Function function) const {
    if (CurrentOf(rank) < groups_.end_of(rank)) ForEachMessage(CurrentOf(rank), function);
  }
  // Returns true if the peer's end is in a group that the peer has not started.
  bool IsBlocked(const Wait& wait) const {
    return groups_.At(wait.peer, wait.peer_position) > CurrentOf(wait.peer);
  }

 private:
  int32_t& CurrentOf(Rank rank) { return current_[static_cast<size_t>(rank.value())]; }
  int32_t CurrentOf(Rank rank) const { return current_[static_cast<size_t>(rank.value())]; }

  // Calls function(Wait) for the other end of each message of the group.
  template <typename Function>
  void ForEachMessage(int32_t group, Function function) const;
  void FindMomentOf(int32_t group);
  void Start(int32_t group, Rank rank) {
    if (group == groups_.end_of(rank)) return;
    const size_t moment = moment_of_[static_cast<size_t>(group)];
    if (--not_started_[moment] == 0) passed_.push_back(moment);
  }

  static constexpr size_t kNoMoment = std::numeric_limits<size_t>::max();

  const Schedule& schedule_;
  const ActionTable& table_;
  const TransferGroups& groups_;
  std::vector<size_t> moment_of_;                // index: group
  std::vector<std::vector<int32_t>> groups_of_;  // index: moment
  std::vector<size_t> not_started_;              // index: moment; number of its groups
  std::vector<int32_t> current_;                 // index: rank; the group that it started last
  std::vector<size_t> passed_;
};

Moments::Moments(const Schedule& schedule, const ActionTable& table, const TransferGroups& groups)
    : schedule_(schedule),
      table_(table),
      groups_(groups),
      moment_of_(groups.all().size(), kNoMoment) {
  for (size_t group = 0; group < moment_of_.size(); ++group) {
    if (moment_of_[group] == kNoMoment) FindMomentOf(static_cast<int32_t>(group));
  }
  for (const std::vector<int32_t>& moment : groups_of_) not_started_.push_back(moment.size());
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    current_.push_back(groups.begin_of(rank));
  }
}

void Moments::FindMomentOf(int32_t group) {
  const size_t moment = groups_of_.size();
  std::vector<int32_t>& connected = groups_of_.emplace_back();
  const auto add = [&](int32_t other) {
    if (moment_of_[static_cast<size_t>(other)] == moment) return;
    moment_of_[static_cast<size_t>(other)] = moment;
    connected.push_back(other);
  };
  add(group);
  for (size_t next = 0; next < connected.size(); ++next) {
    ForEachMessage(connected[next],
                   [&](const Wait& wait) { add(groups_.At(wait.peer, wait.peer_position)); });
  }
}

template <typename Function>
void Moments::ForEachMessage(int32_t group, Function function) const {
  const auto& [rank, begin, end] = groups_.all()[static_cast<size_t>(group)];
  for (size_t i = begin; i < end; ++i) {
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

std::optional<Action> Moments::CollectiveBefore(Rank rank) const {
  if (CurrentOf(rank) == groups_.end_of(rank)) return std::nullopt;
  const size_t begin = groups_.all()[static_cast<size_t>(CurrentOf(rank))].begin;
  const Action& first = schedule_.list_of(rank)[begin];
  return IsCollective(first.op) ? std::optional(first) : std::nullopt;
}

}  // namespace

std::vector<Wait> FindDeadlockInGroups(const Schedule& lowered, const ActionTable& table,
                                       const TransferGroups& groups) {
  Moments moments(lowered, table, groups);
  moments.Run();
  return CycleSearch(moments, lowered.actions.size()).Shortest();
}

std::vector<Wait> FindDeadlock(const Schedule& lowered, const ActionTable& table) {
  Rendezvous rendezvous(lowered, table);
  rendezvous.Run();
  return CycleSearch(rendezvous, lowered.actions.size()).Shortest();
}

}  // namespace stagecoach::schedule
