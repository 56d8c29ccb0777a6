#include "schedule/pictures/bands.h"

#include <algorithm>
#include <map>
#include <utility>

namespace stagecoach::schedule {
namespace {

constexpr size_t kMinAlike = 3;
constexpr size_t kMinUnlike = 12;

// Appends groups of [begin, end), none of whose boxes are kMinAlike alike in a row.
void GroupUnlike(size_t begin, size_t end, std::vector<BoxGroup>& groups) {
  while (begin < end) {
    const size_t own = end - begin < 2 * kMinUnlike ? end - begin : kMinUnlike;
    groups.push_back({.begin = begin, .end = begin + own});
    begin += own;
  }
}

}  // namespace

bool IsCrowded(const Trace& trace, double px_per_ns) {
  size_t passes = 0;
  size_t narrow = 0;
  for (const std::vector<TimedAction>& list : trace.actions) {
    for (const Box& box : BoxesOf(list)) {
      if (!HasMicroBatch(box.timed.action.op)) continue;
      ++passes;
      const auto ns = static_cast<double>(box.timed.end_ns - box.timed.start_ns);
      if (ns * px_per_ns < kMinPassPx) ++narrow;
    }
  }
  return 4 * narrow > passes;
}

std::vector<BoxGroup> GroupBoxes(const std::vector<Box>& boxes,
                                 const std::vector<std::string>& looks, int64_t gap_ns) {
  std::vector<BoxGroup> groups;
  const auto is_pass = [&](size_t i) { return HasMicroBatch(boxes[i].timed.action.op); };
  const auto follows = [&](size_t i) {
    return is_pass(i) && is_pass(i - 1) &&
           boxes[i].timed.start_ns - boxes[i - 1].timed.end_ns < gap_ns;
  };
  size_t unlike = 0;  // where those begin that are in no group yet
  for (size_t i = 0; i < boxes.size();) {
    size_t end = i + 1;
    while (end < boxes.size() && follows(end) && looks[end] == looks[i] &&
           boxes[end].band == boxes[i].band) {
      ++end;
    }
    const bool is_own = end - i >= kMinAlike || !is_pass(i);
    if (is_own || (i > 0 && !follows(i))) {
      GroupUnlike(unlike, i, groups);
      unlike = i;
    }
    if (is_own) {
      groups.push_back({.begin = i, .end = end});
      unlike = end;
    }
    i = end;
  }
  GroupUnlike(unlike, boxes.size(), groups);
  for (BoxGroup& group : groups) {
    for (size_t i = group.begin; i < group.end; ++i) {
      group.end_ns = std::max(group.end_ns, boxes[i].timed.end_ns);
    }
    if (group.end < boxes.size() && follows(group.end)) {
      group.end_ns = std::max(group.end_ns, boxes[group.end].timed.start_ns);
    }
  }
  return groups;
}

std::vector<LookShare> SharesOf(const std::vector<Box>& boxes,
                                const std::vector<std::string>& looks, const BoxGroup& group) {
  const int64_t time_ns = std::max<int64_t>(1, group.end_ns - boxes[group.begin].timed.start_ns);
  std::map<std::pair<Op, std::string>, double> ns_of_look;
  for (size_t i = group.begin; i < group.end; ++i) {
    const TimedAction& timed = boxes[i].timed;
    const double part = boxes[i].band == Band::kWhole ? 1.0 : 0.5;
    ns_of_look[{timed.action.op, looks[i]}] +=
        part * static_cast<double>(timed.end_ns - timed.start_ns);
  }
  std::vector<LookShare> shares;
  for (const auto& [key, ns] : ns_of_look) {
    shares.push_back({key.second, ns / static_cast<double>(time_ns)});
  }
  return shares;
}

}  // namespace stagecoach::schedule
