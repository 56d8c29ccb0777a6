#ifndef STAGECOACH_TOOLS_STAGECOACH_GENERATE_PROMPT_POSITIONS_H_
#define STAGECOACH_TOOLS_STAGECOACH_GENERATE_PROMPT_POSITIONS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/runtime/device/device_spec.h"

namespace stagecoach::tools {

// How many positions of prompts pass at a time, which have these ids. On a CPU device, where a
// token that follows passes alone all the same: as many as take the least time for all but the last
// of each, as a pass computes all its positions, whether or not a prompt has them, and takes some
// time whatever their number. A GPU takes about as long for a few as for one, and a token that
// follows then passes with as much padding: so for prompts that are worth it.
int64_t PositionsAtATime(engine::DeviceKind device, absl::Span<const std::vector<int32_t>> prompts);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_GENERATE_PROMPT_POSITIONS_H_
