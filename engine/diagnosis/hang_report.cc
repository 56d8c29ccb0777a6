#include "engine/diagnosis/hang_report.h"

#include <algorithm>

#include "engine/diagnosis/first_stalled_rank.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kTimesTheLongest = 4;

// Returns how long a rank was busy with it by itself, without waiting for others.
int64_t WorkNs(const FlightEvent& action) {
  const Awaited awaited = action.what.awaited;
  const bool waits_within = awaited == Awaited::kReplicas || awaited == Awaited::kAll;
  return action.is_open() || action.started_ns == 0 || waits_within
             ? 0
             : action.ended_ns - action.started_ns;
}

// Returns whether a rank has been through such an action before, so that its duration is known.
bool KnowsIts(const RankRecord& record, const FlightEvent& open) {
  return std::any_of(record.actions.begin(), record.actions.end(), [&](const auto& action) {
    return !action.is_open() && action.trains == open.trains &&
           action.what.action.op == open.what.action.op;
  });
}

}  // namespace

std::optional<HangReport> FindHang(absl::Span<const RankRecord> records, int64_t now_ns,
                                   absl::Duration patience) {
  int64_t last_ns = 0, longest_ns = 0;
  for (const RankRecord& record : records) {
    if (record.closed_ns != 0 || record.actions.empty()) return std::nullopt;
    for (const FlightEvent& action : record.actions) {
      last_ns = std::max(last_ns, action.last_ns());
      longest_ns = std::max(longest_ns, WorkNs(action));
    }
  }
  const absl::Duration since = absl::Nanoseconds(now_ns - last_ns);
  if (since < patience || since < kTimesTheLongest * absl::Nanoseconds(longest_ns)) {
    return std::nullopt;
  }
  const FirstStalledRank stop = FindFirstStalledRank(records);
  if (stop.devices.empty()) return std::nullopt;
  const int device = stop.devices.front();
  const RankRecord& record = records[static_cast<size_t>(device)];
  const FlightEvent& last = record.actions.back();
  if (!last.is_open() || !KnowsIts(record, last)) return std::nullopt;
  return HangReport{.device = device, .place = stop.place, .since = since};
}

}  // namespace stagecoach::engine
