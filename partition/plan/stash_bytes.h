#ifndef STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_
#define STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_

#include <vector>

#include "partition/stage_memory.h"
#include "schedule/stash.h"

namespace stagecoach::partition {

// What each stage stashes, in bytes: from F until B, and from B until W (schedule/memory.h).
std::vector<schedule::StageStash> StashBytes(const std::vector<schedule::StageMemory>& stages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_STASH_BYTES_H_
