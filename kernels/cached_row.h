#ifndef STAGECOACH_KERNELS_CACHED_ROW_H_
#define STAGECOACH_KERNELS_CACHED_ROW_H_

#include <cstdint>

namespace stagecoach::kernels {

// Where a row of a micro-batch belongs if rows are positions of sequences. A position at or beyond
// the last that a sequence has room for: the row is padding.
struct CachedRow {
  int64_t position = 0;
  int64_t sequence = 0;  // whose cache it is
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CACHED_ROW_H_
