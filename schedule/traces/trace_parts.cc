#include "schedule/traces/trace_parts.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace stagecoach::schedule {

std::vector<Delivery> DeliveriesOf(const Trace& trace) {
  std::map<Action, std::pair<Rank, size_t>> receives;
  for (Rank rank(0); rank.value() < trace.num_ranks(); ++rank) {
    const std::vector<TimedAction>& list = trace.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      if (IsReceive(list[i].action.op))
        receives.emplace(Alone(list[i].action), std::make_pair(rank, i));
    }
  }
  std::vector<Delivery> messages;
  for (Rank rank(0); rank.value() < trace.num_ranks(); ++rank) {
    const std::vector<TimedAction>& list = trace.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!IsSend(list[i].action.op)) continue;
      const auto found = receives.find(OtherEnd(list[i].action));
      if (found == receives.end()) continue;
      messages.push_back({rank, i, found->second.first, found->second.second});
    }
  }
  return messages;
}

std::vector<int> ChunkOfStage(const Trace& trace) {
  std::vector<int> stages_so_far(trace.actions.size(), 0);
  std::vector<int> chunks;
  for (const Rank rank : trace.rank_of_stage) {
    chunks.push_back(stages_so_far[static_cast<size_t>(rank.value())]++);
  }
  return chunks;
}

int ChunkOf(const Action& action, const std::vector<int>& chunks) {
  return IsCollective(action.op) ? 0 : chunks[static_cast<size_t>(action.stage.value())];
}

std::vector<Slice> SlicesOf(const std::vector<TimedAction>& list) {
  std::vector<Slice> slices;
  bool overlaps_last = false;
  for (size_t i = 0; i < list.size(); ++i) {
    Slice slice = {list[i], overlaps_last ? Track::kLower : Track::kWhole};
    overlaps_last = false;
    if (RunsBeside(list[i].action.op) || list[i].start_ns == list[i].end_ns) continue;
    overlaps_last = list[i].action.overlaps_next && i + 1 < list.size() &&
                    list[i + 1].start_ns < list[i].end_ns;
    if (overlaps_last) slice.track = Track::kUpper;
    slices.push_back(slice);
  }
  return slices;
}

std::vector<CopySpan> CopiesOf(const std::vector<TimedAction>& list) {
  std::vector<CopySpan> copies;
  std::array<int64_t, 2> free_ns = {};  // index: direction
  for (size_t i = 0; i < list.size(); ++i) {
    if (!IsHostCopy(list[i].action.op)) continue;
    int64_t& lane_ns = free_ns[list[i].action.op == Op::kOffload ? 0 : 1];
    const int64_t start_ns = std::min(std::max(list[i].start_ns, lane_ns), list[i].end_ns);
    copies.push_back({i, start_ns, list[i].end_ns});
    lane_ns = list[i].end_ns;
  }
  return copies;
}

TimeUnit UnitFor(int64_t step_ns) {
  constexpr TimeUnit kUnits[] = {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}};
  for (const TimeUnit& unit : kUnits) {
    if (step_ns >= 10 * unit.ns) return unit;
  }
  return {"ns", 1};
}

int64_t NiceIntervalNs(int64_t at_least_ns) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * power >= at_least_ns) return digit * power;
    }
  }
}

}  // namespace stagecoach::schedule
