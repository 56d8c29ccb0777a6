#include "schedule/progress.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace stagecoach::schedule {
namespace {

class Rendezvous {
 public:
  Rendezvous(const Schedule& schedule, const ActionTable& table)
      : schedule_(schedule), table_(table), next_(schedule.actions.size(), 0) {}

  // Lets every rank go as far as it can.
  void Run() {
    for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const Rank rank = ready_.back();
      ready_.pop_back();
      RunRank(rank);
    }
  }

  std::vector<Wait> ShortestCycle() const;

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
  void RunRank(Rank rank);

  const Schedule& schedule_;
  const ActionTable& table_;
  std::vector<int32_t> next_;  // index: rank; position of the first action not yet performed
  std::vector<Rank> ready_;
};

// What `rank` waits for before its next action. Pre-condition: it is not at the end.
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

void Rendezvous::RunRank(Rank rank) {
  while (!AtEnd(rank) && !WaitOf(rank).has_value()) {
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

std::vector<Wait> Rendezvous::ShortestCycle() const {
  std::vector<Wait> shortest;
  // The walk (named by the rank it started from) that first came by, and after how many steps.
  struct Visit {
    Rank start;
    size_t step = 0;
  };
  std::vector<Visit> visits(next_.size());
  for (Rank start(0); start.value() < schedule_.num_ranks(); ++start) {
    std::vector<Wait> walk;
    Rank rank = start;
    while (!AtEnd(rank) && !visits[IndexOf(rank)].start.valid()) {
      visits[IndexOf(rank)] = {start, walk.size()};
      walk.push_back(*WaitOf(rank));
      rank = walk.back().peer;
    }
    const Visit& end = visits[IndexOf(rank)];
    if (walk.empty() || end.start != start) continue;
    walk.erase(walk.begin(), walk.begin() + static_cast<ptrdiff_t>(end.step));
    if (shortest.empty() || walk.size() < shortest.size()) shortest = walk;
  }
  return shortest;
}

// Each rank has one group in progress, the next one that it has not done.
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

  std::vector<Wait> ShortestCycle() const;

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
  // The other end of the message whose end on `rank` is at `position`.
  Wait WaitOf(Rank rank, size_t position) const {
    const Action other = OtherEnd(schedule_.list_of(rank)[position]);
    return {rank, static_cast<int32_t>(position), schedule_.rank_of(other.stage),
            table_.Find(other)};
  }
  // The end on the peer is in a group that it has not started.
  bool IsBlocked(const Wait& wait) const {
    return static_cast<size_t>(wait.peer_position) >= CurrentOf(wait.peer).end;
  }

  void StartNext(Rank rank);
  std::vector<Wait> ShortestCycleThrough(Rank start) const;

  const Schedule& schedule_;
  const ActionTable& table_;
  std::vector<Group> current_;  // index: rank
  std::vector<Rank> done_;      // ranks whose group is
};

void Groups::StartNext(Rank rank) {
  const std::vector<Action>& list = schedule_.list_of(rank);
  Group& group = CurrentOf(rank);
  const auto is_transfer = [](const Action& action) { return IsTransfer(action.op); };
  const auto begin =
      std::find_if(list.begin() + static_cast<ptrdiff_t>(group.end), list.end(), is_transfer);
  const auto end = std::find_if_not(begin, list.end(), is_transfer);
  group.begin = static_cast<size_t>(begin - list.begin());
  group.end = static_cast<size_t>(end - list.begin());
  group.left = group.end - group.begin;
  for (size_t i = group.begin; i < group.end; ++i) {
    const Wait wait = WaitOf(rank, i);
    Group& other = CurrentOf(wait.peer);
    if (!other.Has(static_cast<size_t>(wait.peer_position))) continue;
    --group.left;
    if (--other.left == 0) done_.push_back(wait.peer);
  }
  if (group.left == 0 && group.begin < group.end) done_.push_back(rank);
}

// Breadth first; a rank waits for others if the ends of its messages there have not been started.
std::vector<Wait> Groups::ShortestCycleThrough(Rank start) const {
  std::vector<std::optional<Wait>> led_to(current_.size());  // index: rank
  std::vector<Rank> queue = {start};
  for (size_t next = 0; next < queue.size(); ++next) {
    const Group& group = CurrentOf(queue[next]);
    for (size_t i = group.begin; i < group.end; ++i) {
      const Wait wait = WaitOf(queue[next], i);
      std::optional<Wait>& before = led_to[static_cast<size_t>(wait.peer.value())];
      if (!IsBlocked(wait) || before.has_value()) continue;
      before = wait;
      queue.push_back(wait.peer);
      if (wait.peer != start) continue;
      std::vector<Wait> cycle = {wait};
      while (cycle.back().rank != start) {
        cycle.push_back(*led_to[static_cast<size_t>(cycle.back().rank.value())]);
      }
      std::reverse(cycle.begin(), cycle.end());
      return cycle;
    }
  }
  return {};
}

std::vector<Wait> Groups::ShortestCycle() const {
  std::vector<Wait> shortest;
  for (Rank start(0); start.value() < schedule_.num_ranks(); ++start) {
    std::vector<Wait> cycle = ShortestCycleThrough(start);
    if (!cycle.empty() && (shortest.empty() || cycle.size() < shortest.size())) {
      shortest = std::move(cycle);
    }
  }
  return shortest;
}

}  // namespace

std::vector<Wait> FindDeadlockInGroups(const Schedule& lowered, const ActionTable& table) {
  Groups groups(lowered, table);
  groups.Run();
  return groups.ShortestCycle();
}

std::vector<Wait> FindDeadlock(const Schedule& lowered, const ActionTable& table) {
  Rendezvous rendezvous(lowered, table);
  rendezvous.Run();
  return rendezvous.ShortestCycle();
}

}  // namespace stagecoach::schedule
