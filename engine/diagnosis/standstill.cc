#include "engine/diagnosis/standstill.h"

#include <algorithm>

#include "engine/diagnosis/first_stop.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kTimesTheLongest = 4;

// How long a rank had to do with it by itself, without waiting for others.
int64_t WorkNs(const RecordedAction& action) {
  const Awaited awaited = action.what.awaited;
  const bool waits_within = awaited == Awaited::kReplicas || awaited == Awaited::kAll;
  return action.is_open() || action.started_ns == 0 || waits_within
             ? 0
             : action.ended_ns - action.started_ns;
}

// Whether a rank has been through such an action before, so that it is known how long one takes.
bool KnowsIts(const RankRecord& record, const RecordedAction& open) {
  return std::any_of(record.actions.begin(), record.actions.end(), [&](const auto& action) {
    return !action.is_open() && action.trains == open.trains &&
           action.what.action.op == open.what.action.op;
  });
}

}  // namespace

std::optional<Standstill> FindStandstill(absl::Span<const RankRecord> records, int64_t now_ns,
                                         absl::Duration patience) {
  int64_t last_ns = 0, longest_ns = 0;
  for (const RankRecord& record : records) {
    if (record.closed_ns != 0 || record.actions.empty()) return std::nullopt;
    for (const RecordedAction& action : record.actions) {
      last_ns = std::max(last_ns, action.last_ns());
      longest_ns = std::max(longest_ns, WorkNs(action));
    }
  }
  const absl::Duration since = absl::Nanoseconds(now_ns - last_ns);
  if (since < patience || since < kTimesTheLongest * absl::Nanoseconds(longest_ns)) {
    return std::nullopt;
  }
  const FirstStop stop = FindFirstStop(records);
  if (stop.devices.empty()) return std::nullopt;
  const int device = stop.devices.front();
  const RankRecord& record = records[static_cast<size_t>(device)];
  const RecordedAction& last = record.actions.back();
  if (!last.is_open() || !KnowsIts(record, last)) return std::nullopt;
  return Standstill{.device = device, .place = stop.place, .since = since};
}

}  // namespace stagecoach::engine
