#ifndef STAGECOACH_SCHEDULE_RENDER_BANDS_H_
#define STAGECOACH_SCHEDULE_RENDER_BANDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/traces/trace.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {

// Passes without room are drawn as bands, one above the other, each as high as its share of the
// time. The page's script (page.js) does the same for what it shows.

// A pass narrower than this hardly has room for one digit of its micro-batch.
inline constexpr double kMinPassPx = 10.0;

// Returns true if more than a quarter of the trace's passes are narrower than kMinPassPx.
bool IsCrowded(const Trace& trace, double px_per_ns);

// Neighbors [begin, end) in a rank's slices. end_ns reaches the next group if that follows at once,
// so that there is no seam.
struct SliceGroup {
  size_t begin = 0;
  size_t end = 0;
  int64_t end_ns = 0;
};

// Divides a rank's slices into groups, each drawn as one. A slice without a micro-batch is alone,
// and a group ends where the rank is idle for `gap_ns`. Three or more that look alike form a group
// of their own; any other group has at least twelve slices if there are that many: then all orders
// that repeat after 1, 2, 3, 4, 6 or 12 slices have the same shares in every group. `looks`: the
// look of each slice.
std::vector<SliceGroup> GroupSlices(const std::vector<Slice>& slices,
                                    const std::vector<std::string>& looks, int64_t gap_ns);

// A look and its share of a group's time.
struct LookShare {
  std::string look;
  double share = 0.0;
};

// Returns the shares of operations and stages, which sum to at most 1; the rest is idle.
std::vector<LookShare> SharesOf(const std::vector<Slice>& slices,
                                const std::vector<std::string>& looks, const SliceGroup& group);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_BANDS_H_
