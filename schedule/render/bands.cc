#include "schedule/render/bands.h"

#include <algorithm>
#include <map>
#include <utility>

namespace stagecoach::schedule {
namespace {

constexpr size_t kMinAlike = 3;
constexpr size_t kMinUnlike = 12;

// Appends groups of [begin, end), which has no kMinAlike similar slices in a row.
void GroupUnlike(size_t begin, size_t end, std::vector<SliceGroup>& groups) {
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
    for (const Slice& slice : SlicesOf(list)) {
      if (!HasMicroBatch(slice.timed.action.op)) continue;
      ++passes;
      const auto ns = static_cast<double>(slice.timed.end_ns - slice.timed.start_ns);
      if (ns * px_per_ns < kMinPassPx) ++narrow;
    }
  }
  return 4 * narrow > passes;
}

std::vector<SliceGroup> GroupSlices(const std::vector<Slice>& slices,
                                    const std::vector<std::string>& looks, int64_t gap_ns) {
  std::vector<SliceGroup> groups;
  const auto is_pass = [&](size_t i) { return HasMicroBatch(slices[i].timed.action.op); };
  const auto follows = [&](size_t i) {
    return is_pass(i) && is_pass(i - 1) &&
           slices[i].timed.start_ns - slices[i - 1].timed.end_ns < gap_ns;
  };
  size_t unlike = 0;  // start of the slices that are in no group yet
  for (size_t i = 0; i < slices.size();) {
    size_t end = i + 1;
    while (end < slices.size() && follows(end) && looks[end] == looks[i] &&
           slices[end].track == slices[i].track) {
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
  GroupUnlike(unlike, slices.size(), groups);
  for (SliceGroup& group : groups) {
    for (size_t i = group.begin; i < group.end; ++i) {
      group.end_ns = std::max(group.end_ns, slices[i].timed.end_ns);
    }
    if (group.end < slices.size() && follows(group.end)) {
      group.end_ns = std::max(group.end_ns, slices[group.end].timed.start_ns);
    }
  }
  return groups;
}

std::vector<LookShare> SharesOf(const std::vector<Slice>& slices,
                                const std::vector<std::string>& looks, const SliceGroup& group) {
  const int64_t time_ns = std::max<int64_t>(1, group.end_ns - slices[group.begin].timed.start_ns);
  std::map<std::pair<Op, std::string>, double> ns_of_look;
  for (size_t i = group.begin; i < group.end; ++i) {
    const TimedAction& timed = slices[i].timed;
    const double part = slices[i].track == Track::kWhole ? 1.0 : 0.5;
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
