#include "partition/plan/stash_bytes.h"

#include <cstdint>

namespace stagecoach::partition {
using schedule::AlignBlock;
using schedule::LastUse;
using schedule::StageMemory;

std::vector<schedule::StageStash> StashBytes(const std::vector<StageMemory>& stages) {
  std::vector<schedule::StageStash> stash;
  for (const StageMemory& memory : stages) {
    const auto bytes_kept = [](int64_t bytes, bool kept) {
      return kept ? static_cast<double>(AlignBlock(bytes)) : 0.0;
    };
    const auto until_weight = [&](int64_t bytes, LastUse last_use) {
      return bytes_kept(bytes, last_use == LastUse::kBackwardWeight);
    };
    schedule::StageStash& own = stash.emplace_back();
    own.forward = bytes_kept(memory.stash_bytes, true) +
                  bytes_kept(memory.weight_stash_bytes, true) +
                  bytes_kept(memory.input_bytes, memory.input_last_use != LastUse::kForward) +
                  bytes_kept(memory.output_bytes, memory.output_last_use != LastUse::kForward);
    own.weight = bytes_kept(memory.weight_stash_bytes, true) +
                 bytes_kept(memory.gradient_stash_bytes, true) +
                 until_weight(memory.input_bytes, memory.input_last_use) +
                 until_weight(memory.output_bytes, memory.output_last_use) +
                 until_weight(memory.output_gradient_bytes, memory.output_gradient_last_use);
  }
  return stash;
}

}  // namespace stagecoach::partition
