#include "schedule/search/local_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"
#include "schedule/search/movable_order.h"
#include "schedule/search/order_timer.h"

namespace stagecoach::schedule {
namespace {

// Largest distance from the end of a block at which a pass may be moved across that end.
constexpr int kReach = 12;
// Number of moves without a new best order after which the search returns to the best one.
constexpr int64_t kPatience = 400;
// Number of moves after which a new best order is asked about, until one is refused: an answer
// takes as long as dozens of moves, and most requests refuse no order at all.
constexpr int64_t kTrust = 50;
// Number of moves during which a move must not be reversed: at least this, and less than the sum.
constexpr int64_t kMinTenure = 6;
constexpr int64_t kTenureSpread = 10;
// Random exchanges of neighbors before the search continues from the best order.
constexpr int kExchanges = 4;

// Holds until when an order of two passes, or fusing one pass, is forbidden. Entries are hashed:
// two may share a slot, and then both are forbidden.
class TabuList {
 public:
  TabuList() : until_(kSlots, 0) {}

  void Forbid(PassId first, PassId second, int64_t until) { until_[Slot(first, second)] = until; }
  bool Forbids(PassId first, PassId second, int64_t now) const {
    return until_[Slot(first, second)] > now;
  }

 private:
  static constexpr int kSlotBits = 16;
  static constexpr size_t kSlots = size_t{1} << kSlotBits;

  static size_t Slot(PassId first, PassId second) {
    const uint64_t pair = static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(second);
    return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> (64 - kSlotBits));
  }

  std::vector<int64_t> until_;
};

class TabuSearch {
 public:
  TabuSearch(const OrderProblem& problem, const Order& start,
             absl::FunctionRef<bool(const Order&)> is_acceptable, const LocalSearchOptions& options)
      : problem_(problem),
        options_(options),
        is_acceptable_(is_acceptable),
        random_(options.seed, 0),
        can_gain_by_fusing_(std::find(problem.gains_by_fusing.begin(),
                                      problem.gains_by_fusing.end(),
                                      true) != problem.gains_by_fusing.end()),
        current_(problem, start),
        timer_(problem) {}

  Order Search();

 private:
  // Returns false if there is nothing to do: the order is optimal, or has no move that is allowed.
  bool Step();
  void Shake();
  // Asks about the best order; if it is refused, the last accepted one becomes the best again, and
  // the search asks about every one from there.
  void Confirm();

  void CollectMoves();
  void AddMovesAcrossEnds(const std::vector<PassId>& block, bool is_first, bool is_last);
  void AddMovesOfWeight(PassId pass);
  void Add(const Move& move) {
    if (current_.Permits(move)) moves_.push_back(move);
  }

  int64_t Estimate(const Move& move);
  int64_t EstimateShift(const Move& move);
  int64_t EstimateFuse(const Move& move) const;
  int64_t EstimateSplit(const Move& move) const;
  // Returns the time from the end of the pass at `place` along its list to the end of the step.
  int64_t TailByList(int rank, int place) const;

  // Calls visit(first, second) for each order of passes that `move` undoes.
  template <typename Visit>
  void ForEachUndone(const Move& move, Visit visit) const;
  bool IsForbidden(const Move& move) const;
  void Forbid(const Move& move);

  PassId PassAt(int rank, int place) const {
    return current_.list_of(rank)[static_cast<size_t>(place)];
  }
  uint64_t Draw(uint64_t n) { return random_.Below(draws_++, n); }

  const OrderProblem& problem_;
  const LocalSearchOptions options_;
  const absl::FunctionRef<bool(const Order&)> is_acceptable_;
  const base::RandomStream random_;
  uint64_t draws_ = 0;
  const bool can_gain_by_fusing_;

  MovableOrder current_;
  OrderTimer timer_;
  struct Found {
    Order order;
    Score score;
    int64_t since = 0;  // number of moves before it
  };
  Found best_, confirmed_;
  int64_t now_ = 0;  // number of moves so far
  int64_t trust_ = kTrust;
  TabuList tabu_;
  // Results for the longest path.
  std::vector<Move> moves_;
  bool is_optimal_ = false;
  // Working memory.
  std::vector<PassId> block_;
  std::vector<PassId> moved_;
  std::vector<int64_t> end_;
};

Order TabuSearch::Search() {
  timer_.Run(current_.order());
  confirmed_ = best_ = {current_.order(), timer_.score()};
  for (; now_ < options_.max_moves; ++now_) {
    const bool moved = Step();
    if (is_optimal_) break;
    if (moved && timer_.score() < best_.score) best_ = {current_.order(), timer_.score(), now_};
    if (now_ % trust_ == trust_ - 1) Confirm();
    if (!moved || (now_ - best_.since) % kPatience == kPatience - 1) Shake();
  }
  Confirm();
  return std::move(confirmed_.order);
}

void TabuSearch::Confirm() {
  if (!(best_.score < confirmed_.score)) return;
  if (is_acceptable_(best_.order)) {
    confirmed_ = best_;
    return;
  }
  best_ = confirmed_;
  // The walk has continued from an order that is refused.
  if (trust_ > 1) Shake();
  trust_ = 1;
}

bool TabuSearch::Step() {
  CollectMoves();
  if (is_optimal_) return false;
  timer_.RunTails();
  const Move* best = nullptr;
  int64_t best_estimate = std::numeric_limits<int64_t>::max();
  for (const Move& move : moves_) {
    const int64_t estimate = Estimate(move);
    if (estimate >= best_estimate) continue;
    if (estimate >= best_.score.objective_ns && IsForbidden(move)) continue;
    best = &move;
    best_estimate = estimate;
  }
  if (best == nullptr) return false;
  Forbid(*best);
  current_.Apply(*best);
  if (timer_.Run(current_.order())) return true;
  // The ranks would wait for one another.
  const Move reverse = MovableOrder::Reverse(*best);
  Forbid(reverse);
  current_.Apply(reverse);
  timer_.Run(current_.order());
  return true;
}

void TabuSearch::Shake() {
  current_ = MovableOrder(problem_, best_.order);
  for (int i = 0; i < kExchanges; ++i) {
    const int rank = static_cast<int>(Draw(static_cast<uint64_t>(problem_.ranks)));
    const int from = static_cast<int>(Draw(current_.list_of(rank).size()));
    if (from == 0) continue;
    const Move move{Move::Kind::kShift, rank, from, from - 1};
    if (!current_.Permits(move)) continue;
    current_.Apply(move);
    if (!timer_.Run(current_.order())) current_.Apply(MovableOrder::Reverse(move));
  }
  timer_.Run(current_.order());
}

// Collects moves along the longest path, from its end, cut into blocks: passes of one rank that
// follow one another without a pause. Only a move across the end of a block, or a change of
// durations, can shorten the path.
void TabuSearch::CollectMoves() {
  moves_.clear();
  block_.clear();
  bool is_last = true;
  PassId pass = current_.list_of(timer_.longest_rank()).back();
  while (true) {
    block_.push_back(pass);
    if (can_gain_by_fusing_) AddMovesOfWeight(pass);
    const PassId before = timer_.before(pass);
    if (before != kNoPass && timer_.end_ns(before) == timer_.start_ns(pass)) {
      pass = before;
      continue;
    }
    std::reverse(block_.begin(), block_.end());
    const PassId producer = problem_.producer[static_cast<size_t>(pass)];
    // Nothing can run before a rank's first pass: it is the first micro-batch's.
    const bool is_first = producer == kNoPass || before == kNoPass;
    if (is_first && is_last && !can_gain_by_fusing_) is_optimal_ = true;
    AddMovesAcrossEnds(block_, is_first, is_last);
    if (is_first) return;
    is_last = false;
    block_.clear();
    pass = producer;
  }
}

void TabuSearch::AddMovesAcrossEnds(const std::vector<PassId>& block, bool is_first, bool is_last) {
  const int rank = problem_.rank_of[static_cast<size_t>(block.front())];
  const int begin = current_.place(block.front());
  const int end = current_.place(block.back());
  constexpr Move::Kind kShift = Move::Kind::kShift;
  if (!is_first) {
    for (int i = begin + 1; i <= std::min(end, begin + kReach); ++i) {
      Add({kShift, rank, i, begin});
      if (i > begin + 1) Add({kShift, rank, begin, i});
    }
  }
  if (!is_last) {
    for (int i = end - 1; i >= std::max(begin, end - kReach); --i) {
      Add({kShift, rank, i, end});
      if (i < end - 1) Add({kShift, rank, end, i});
    }
  }
}

void TabuSearch::AddMovesOfWeight(PassId pass) {
  if (problem_.KindOf(pass) != PassKind::kBackward) return;
  const int stage = problem_.StageOf(pass);
  if (!problem_.gains_by_fusing[static_cast<size_t>(stage)]) return;
  const int rank = problem_.rank_of[static_cast<size_t>(pass)];
  const int place = current_.place(pass);
  if (problem_.IsFused(pass, current_.order().fused)) {
    Add({Move::Kind::kSplit, rank, place, place + 1});
    return;
  }
  const PassId weight = problem_.Pass(PassKind::kWeight, stage, problem_.MicroBatchOf(pass));
  Add({Move::Kind::kFuse, rank, place, current_.place(weight)});
}

// Returns the longest path through one of the passes that change, if nothing else changed.
int64_t TabuSearch::Estimate(const Move& move) {
  switch (move.kind) {
    case Move::Kind::kShift:
      return EstimateShift(move);
    case Move::Kind::kFuse:
      return EstimateFuse(move);
    case Move::Kind::kSplit:
      return EstimateSplit(move);
  }
  return 0;
}

int64_t TabuSearch::TailByList(int rank, int place) const {
  const PassId next = timer_.after(PassAt(rank, place));
  return next == kNoPass ? timer_.tail_of_list_ns(rank)
                         : timer_.duration(next) + timer_.tail_ns(next);
}

int64_t TabuSearch::EstimateShift(const Move& move) {
  const std::vector<PassId>& list = current_.list_of(move.rank);
  const int first = std::min(move.from, move.to);
  const int last = std::max(move.from, move.to);
  moved_.assign(list.begin() + first, list.begin() + last + 1);
  if (move.to > move.from) {
    std::rotate(moved_.begin(), moved_.begin() + 1, moved_.end());
  } else {
    std::rotate(moved_.begin(), moved_.end() - 1, moved_.end());
  }
  end_.clear();
  int64_t clock = first == 0 ? 0 : timer_.end_ns(PassAt(move.rank, first - 1));
  for (const PassId pass : moved_) {
    clock = std::max(clock, timer_.ready_ns(pass)) + timer_.duration(pass);
    end_.push_back(clock);
  }
  int64_t tail = TailByList(move.rank, last);
  int64_t longest = std::numeric_limits<int64_t>::min();
  for (size_t i = moved_.size(); i-- > 0;) {
    tail = std::max(tail, timer_.tail_by_message_ns(moved_[i]));
    longest = std::max(longest, end_[i] + tail);
    tail += timer_.duration(moved_[i]);
  }
  return longest;
}

int64_t TabuSearch::EstimateFuse(const Move& move) const {
  const PassId backward = PassAt(move.rank, move.from);
  const PassId weight = PassAt(move.rank, move.to);
  const int64_t end =
      timer_.start_ns(backward) + problem_.fused_duration[static_cast<size_t>(backward)];
  // Whatever lies between the two still follows.
  const int64_t by_list = TailByList(move.rank, move.from) - timer_.duration(weight);
  return end + std::max(by_list, timer_.tail_by_message_ns(backward));
}

int64_t TabuSearch::EstimateSplit(const Move& move) const {
  const auto backward = static_cast<size_t>(PassAt(move.rank, move.from));
  const int stage = problem_.StageOf(PassAt(move.rank, move.from));
  const int i = problem_.MicroBatchOf(PassAt(move.rank, move.from));
  const auto weight = static_cast<size_t>(problem_.Pass(PassKind::kWeight, stage, i));
  const int64_t end = timer_.start_ns(PassAt(move.rank, move.from)) + problem_.duration[backward];
  return end + std::max(problem_.duration[weight] + TailByList(move.rank, move.from),
                        timer_.tail_by_message_ns(PassAt(move.rank, move.from)));
}

template <typename Visit>
void TabuSearch::ForEachUndone(const Move& move, Visit visit) const {
  const PassId pass = PassAt(move.rank, move.from);
  if (move.kind != Move::Kind::kShift) {
    visit(pass, pass);
    return;
  }
  for (int i = move.from + 1; i <= move.to; ++i) visit(pass, PassAt(move.rank, i));
  for (int i = move.from - 1; i >= move.to; --i) visit(PassAt(move.rank, i), pass);
}

// Returns true if the move restores an order of two passes that another has recently undone.
bool TabuSearch::IsForbidden(const Move& move) const {
  bool forbidden = false;
  ForEachUndone(move, [&](PassId first, PassId second) {
    forbidden = forbidden || tabu_.Forbids(second, first, now_);
  });
  return forbidden;
}

void TabuSearch::Forbid(const Move& move) {
  const int64_t until = now_ + kMinTenure + static_cast<int64_t>(Draw(kTenureSpread));
  ForEachUndone(move, [&](PassId first, PassId second) { tabu_.Forbid(first, second, until); });
}

}  // namespace

Order ImproveOrder(const OrderProblem& problem, const Order& start,
                   absl::FunctionRef<bool(const Order&)> is_acceptable,
                   const LocalSearchOptions& options) {
  return TabuSearch(problem, start, is_acceptable, options).Search();
}

}  // namespace stagecoach::schedule
