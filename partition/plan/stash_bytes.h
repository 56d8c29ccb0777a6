#ifndef STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_
#define STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_

#include <vector>

#include "partition/cost/stage_memory.h"
#include "schedule/memory/stash.h"

namespace stagecoach::partition {

// Returns what each stage stashes, in bytes: from F until B, and from B until W
// (schedule/memory/memory_plan.h).
std::vector<schedule::StageStash> StashBytes(const std::vector<schedule::StageMemory>& stages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_
