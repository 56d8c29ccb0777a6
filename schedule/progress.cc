#include "schedule/progress.h"

#include <cstddef>
#include <optional>

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

}  // namespace

std::vector<Wait> FindDeadlock(const Schedule& lowered, const ActionTable& table) {
  Rendezvous rendezvous(lowered, table);
  rendezvous.Run();
  return rendezvous.ShortestCycle();
}

}  // namespace stagecoach::schedule
