#include "engine/block_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace stagecoach::engine {

BlockTable::BlockTable(kernels::Arena& arena, int64_t base, schedule::MemoryPlan plan,
                       const schedule::Schedule& schedule)
    : arena_(arena),
      base_(base),
      plan_(std::move(plan)),
      micro_batches_(static_cast<size_t>(schedule.num_micro_batches)),
      by_last_(plan_.blocks.size()),
      addresses_(static_cast<size_t>(schedule.num_stages()) * schedule::kNumBlockKinds *
                 micro_batches_) {
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
    ASSIGN_OR_RETURN(addresses_[Index(block.kind, block.stage, block.micro_batch)],
                     arena_.Claim(base_ + block.offset, block.bytes));
  }
  return absl::OkStatus();
}

absl::Status BlockTable::End(int position) {
  for (; next_release_ < by_last_.size(); ++next_release_) {
    const schedule::Block& block = plan_.blocks[static_cast<size_t>(by_last_[next_release_])];
    if (block.last != position) break;
    RETURN_IF_ERROR(arena_.Release(base_ + block.offset));
    addresses_[Index(block.kind, block.stage, block.micro_batch)] = nullptr;
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
