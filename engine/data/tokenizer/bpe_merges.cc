#include "engine/data/tokenizer/bpe_merges.h"

#include <algorithm>
#include <iterator>

namespace stagecoach::engine {
namespace {

// The first element of a heap is the greatest: what is merged last is the least.
constexpr auto kIsMergedLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
};

}  // namespace

// Pushes the pair that begins there, if it is ever merged.
void BpeMerges::Push(int32_t position, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols_[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const int32_t right = scratch.symbols_[static_cast<size_t>(left.next)].id;
  const auto found = merges_.find(Pair(left.id, right));
  if (found == merges_.end()) return;
  scratch.heap_.push_back({found->second.rank, position, left.id, right, found->second.merged});
  std::push_heap(scratch.heap_.begin(), scratch.heap_.end(), kIsMergedLater);
}

void BpeMerges::Apply(std::vector<int32_t>& symbols, Scratch& scratch) const {
  const auto count = static_cast<int32_t>(symbols.size());
  scratch.symbols_.clear();
  scratch.heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    scratch.symbols_.push_back(
        {symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) Push(i, scratch);
  const auto symbol = [&](int32_t i) -> Scratch::Symbol& {
    return scratch.symbols_[static_cast<size_t>(i)];
  };
  while (!scratch.heap_.empty()) {
    std::pop_heap(scratch.heap_.begin(), scratch.heap_.end(), kIsMergedLater);
    const Scratch::Candidate candidate = scratch.heap_.back();
    scratch.heap_.pop_back();
    Scratch::Symbol& left = symbol(candidate.position);
    // Either symbol may have become part of another.
    if (left.id != candidate.left || left.next < 0) continue;
    Scratch::Symbol& right = symbol(left.next);
    if (right.id != candidate.right) continue;
    left.id = candidate.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = candidate.position;
    if (left.previous >= 0) Push(left.previous, scratch);
    Push(candidate.position, scratch);
  }
  symbols.clear();
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).next) symbols.push_back(symbol(i).id);
}

}  // namespace stagecoach::engine
