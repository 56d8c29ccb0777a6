#include "schedule/search/movable_order.h"

#include <algorithm>

namespace stagecoach::schedule {

MovableOrder::MovableOrder(const OrderProblem& problem, const Order& order)
    : problem_(&problem),
      order_(order),
      place_(static_cast<size_t>(problem.num_passes()), -1),
      stash_(order.lists.size()) {
  for (int r = 0; r < problem.ranks; ++r) Count(r);
}

void MovableOrder::Count(int rank) {
  std::vector<double>& stash = stash_[static_cast<size_t>(rank)];
  stash.clear();
  double kept = 0.0;
  for (const PassId pass : list_of(rank)) {
    kept += problem_->StashChange(pass, order_.fused);
    place_[static_cast<size_t>(pass)] = static_cast<int>(stash.size());
    stash.push_back(kept);
  }
}

bool MovableOrder::MustPrecede(PassId a, PassId b) const {
  if (problem_->producer[static_cast<size_t>(b)] == a) return true;
  if (problem_->StageOf(a) != problem_->StageOf(b)) return false;
  const int i = problem_->MicroBatchOf(a);
  const int j = problem_->MicroBatchOf(b);
  const PassKind kind_a = problem_->KindOf(a);
  const PassKind kind_b = problem_->KindOf(b);
  if (i == j) return kind_a < kind_b;
  if (kind_a == kind_b) return i < j;
  // A BW is also a W.
  const auto adds_weight_gradients = [this](PassId pass, PassKind kind) {
    return kind == PassKind::kWeight ||
           (kind == PassKind::kBackward && problem_->IsFused(pass, order_.fused));
  };
  return i < j && adds_weight_gradients(a, kind_a) && adds_weight_gradients(b, kind_b);
}

bool MovableOrder::PermitsShift(const Move& move) const {
  const std::vector<PassId>& list = list_of(move.rank);
  const std::vector<double>& stash = stash_[static_cast<size_t>(move.rank)];
  const double limit = problem_->limit[static_cast<size_t>(move.rank)];
  const PassId pass = list[static_cast<size_t>(move.from)];
  const double change = problem_->StashChange(pass, order_.fused);
  if (move.to > move.from) {
    for (int i = move.from + 1; i <= move.to; ++i) {
      if (MustPrecede(pass, list[static_cast<size_t>(i)])) return false;
      if (stash[static_cast<size_t>(i)] - change > limit) return false;
    }
    return true;
  }
  for (int i = move.from - 1; i >= move.to; --i) {
    if (MustPrecede(list[static_cast<size_t>(i)], pass)) return false;
    const double before = i == 0 ? 0.0 : stash[static_cast<size_t>(i) - 1];
    if (std::max(before, stash[static_cast<size_t>(i)]) + change > limit) return false;
  }
  return true;
}

bool MovableOrder::PermitsFuse(const Move& move) const {
  const PassId pass = list_of(move.rank)[static_cast<size_t>(move.from)];
  if (problem_->MicroBatchOf(pass) == 0) return true;
  // The W of the micro-batch before must come first.
  const PassId previous = pass - 1;
  if (problem_->IsFused(previous, order_.fused)) return true;
  return place(problem_->Pass(PassKind::kWeight, problem_->StageOf(previous),
                              problem_->MicroBatchOf(previous))) < move.from;
}

bool MovableOrder::PermitsSplit(const Move& move) const {
  const PassId pass = list_of(move.rank)[static_cast<size_t>(move.from)];
  const double weight = problem_->stash[static_cast<size_t>(problem_->StageOf(pass))].weight;
  for (int i = move.from; i < move.to; ++i) {
    const double kept = stash_[static_cast<size_t>(move.rank)][static_cast<size_t>(i)];
    if (kept + weight > problem_->limit[static_cast<size_t>(move.rank)]) return false;
  }
  return true;
}

bool MovableOrder::Permits(const Move& move) const {
  switch (move.kind) {
    case Move::Kind::kShift:
      return PermitsShift(move);
    case Move::Kind::kFuse:
      return PermitsFuse(move);
    case Move::Kind::kSplit:
      return PermitsSplit(move);
  }
  return false;
}

void MovableOrder::Apply(const Move& move) {
  std::vector<PassId>& list = order_.lists[static_cast<size_t>(move.rank)];
  const auto from = list.begin() + move.from;
  if (move.kind == Move::Kind::kShift) {
    const auto to = list.begin() + move.to;
    if (move.to > move.from) {
      std::rotate(from, from + 1, to + 1);
    } else {
      std::rotate(to, from, from + 1);
    }
  } else {
    const int stage = problem_->StageOf(*from);
    const int i = problem_->MicroBatchOf(*from);
    const bool fuse = move.kind == Move::Kind::kFuse;
    order_.fused[static_cast<size_t>(problem_->Pass(PassKind::kForward, stage, i))] = fuse ? 1 : 0;
    if (fuse) {
      list.erase(list.begin() + move.to);
    } else {
      list.insert(list.begin() + move.to, problem_->Pass(PassKind::kWeight, stage, i));
    }
  }
  Count(move.rank);
}

Move MovableOrder::Reverse(const Move& move) {
  switch (move.kind) {
    case Move::Kind::kShift:
      return {move.kind, move.rank, move.to, move.from};
    case Move::Kind::kFuse:
      return {Move::Kind::kSplit, move.rank, move.from, move.to};
    case Move::Kind::kSplit:
      return {Move::Kind::kFuse, move.rank, move.from, move.to};
  }
  return move;
}

}  // namespace stagecoach::schedule
