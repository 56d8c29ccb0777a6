#ifndef STAGECOACH_ENGINE_DATA_CHAT_PACKING_H_
#define STAGECOACH_ENGINE_DATA_CHAT_PACKING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::engine {

// Puts items into rows so that the lengths in a row sum to at most `capacity`: the longest first,
// each into the fullest row that has room for it (best fit decreasing: at most 11/9 as many rows as
// are needed, and one more; Johnson 1973). Returns the items of each row in ascending order; the
// rows are in the order of their first items. Pre-condition: each length is in [1, capacity].
std::vector<std::vector<int64_t>> PackIntoRows(absl::Span<const int64_t> lengths, int64_t capacity);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_PACKING_H_
