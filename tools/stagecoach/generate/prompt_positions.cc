#include "tools/stagecoach/generate/prompt_positions.h"

#include <algorithm>
#include <limits>

namespace stagecoach::tools {
namespace {

constexpr int64_t kMany = 128;  // rows with which products are fast
constexpr int64_t kPass = 16;   // positions that take about as long as reading all weights

// For a GPU.
constexpr int64_t kFew = 8;
constexpr int64_t kLongPrompt = 64;

}  // namespace

int64_t PositionsAtATime(engine::DeviceKind device,
                         absl::Span<const std::vector<int32_t>> prompts) {
  if (device == engine::DeviceKind::kCuda) {
    int64_t longest = 0;
    for (const auto& ids : prompts) longest = std::max<int64_t>(longest, std::ssize(ids));
    return longest >= kLongPrompt ? kFew : 1;
  }
  int64_t best = 1;
  int64_t least_time = std::numeric_limits<int64_t>::max();
  for (int64_t positions = 1; positions <= kMany; ++positions) {
    int64_t passes = 0;
    for (const auto& ids : prompts) {
      const int64_t all_but_last = std::ssize(ids) - 1;
      passes += (all_but_last + positions - 1) / positions;
    }
    const int64_t time = passes * (positions + kPass);
    if (time >= least_time) continue;
    least_time = time;
    best = positions;
  }
  return best;
}

}  // namespace stagecoach::tools
