#include <span>

#include "kernels/cuda/ops/attention/attention_kernels.h"

// In the place of attention_warpgroup_backward.cu in builds that are not for sm_90.
namespace stagecoach::kernels {

std::span<const AttentionTile> AttentionKeyTilesOfWarpgroups() { return {}; }
std::span<const AttentionTile> AttentionQueryTilesOfWarpgroups() { return {}; }

}  // namespace stagecoach::kernels
