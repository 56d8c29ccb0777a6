#include "engine/runtime/block_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace stagecoach::engine {

BlockTable::BlockTable(kernels::Arena& arena, int64_t base, schedule::MemoryPlan plan)
    : arena_(arena),
      base_(base),
      plan_(std::move(plan)),
      by_last_(plan_.blocks.size()),
      is_stash_(plan_.blocks.size()) {
  std::iota(by_last_.begin(), by_last_.end(), 0);
  std::stable_sort(by_last_.begin(), by_last_.end(), [&](int32_t a, int32_t b) {
    return plan_.blocks[static_cast<size_t>(a)].last < plan_.blocks[static_cast<size_t>(b)].last;
  });
}

void BlockTable::Restart() {
  next_claim_ = 0;
  next_release_ = 0;
}

absl::Status BlockTable::Begin(int position) {
  for (; next_claim_ < plan_.blocks.size() && plan_.blocks[next_claim_].first == position;
       ++next_claim_) {
    const schedule::Block& block = plan_.blocks[next_claim_];
    RETURN_IF_ERROR(arena_.Claim(base_ + block.offset, block.bytes).status());
  }
  return absl::OkStatus();
}

absl::Status BlockTable::End(int position) {
  for (; next_release_ < by_last_.size(); ++next_release_) {
    const auto index = static_cast<size_t>(by_last_[next_release_]);
    const schedule::Block& block = plan_.blocks[index];
    if (block.last != position) break;
    RETURN_IF_ERROR(arena_.Release(base_ + block.offset));
    if (is_stash_[index] != 0) stash_bytes_ -= block.bytes;
    is_stash_[index] = 0;
  }
  return absl::OkStatus();
}

void BlockTable::Stash(int32_t block) {
  const auto index = static_cast<size_t>(block);
  if (is_stash_[index] != 0) return;
  is_stash_[index] = 1;
  stash_bytes_ += plan_.blocks[index].bytes;
  peak_stash_bytes_ = std::max(peak_stash_bytes_, stash_bytes_);
}

}  // namespace stagecoach::engine
