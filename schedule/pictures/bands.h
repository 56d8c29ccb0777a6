#ifndef STAGECOACH_SCHEDULE_PICTURES_BANDS_H_
#define STAGECOACH_SCHEDULE_PICTURES_BANDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/trace.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {

// How pictures draw passes that have no room: as bands, one above the other, each as high as its
// share of the time. The page's script (page_script.cc) does the same for what it shows.

// A pass narrower than this has hardly room for a digit of its micro-batch.
inline constexpr double kMinPassPx = 10.0;

// Whether more than a quarter of the trace's passes are narrower than that.
bool IsCrowded(const Trace& trace, double px_per_ns);

// Neighbors in a rank's boxes: [begin, end), until the next group if that follows at once, so that
// there is no seam.
struct BoxGroup {
  size_t begin = 0;
  size_t end = 0;
  int64_t end_ns = 0;
};

// Divides a rank's boxes into groups to be drawn as one. What has no micro-batch is alone, and a
// group ends where the rank is idle for `gap_ns`. Three or more that look alike are a group of
// their own; of others, a group has at least twelve where there are so many: then all orders that
// repeat after 1, 2, 3, 4, 6 or 12 boxes have the same shares in every group. `looks`: of each box.
std::vector<BoxGroup> GroupBoxes(const std::vector<Box>& boxes,
                                 const std::vector<std::string>& looks, int64_t gap_ns);

// A look and its share of a group's time.
struct LookShare {
  std::string look;
  double share = 0.0;
};

// By operation and stage. Shares sum to at most 1; the rest is idle.
std::vector<LookShare> SharesOf(const std::vector<Box>& boxes,
                                const std::vector<std::string>& looks, const BoxGroup& group);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_BANDS_H_
