#include "schedule/traces/trace_stash.h"

#include <algorithm>
#include <cstddef>

namespace stagecoach::schedule {
namespace {

// The amounts kept while an action of the list runs, and after it.
struct Kept {
  double during = 0.0;
  double after = 0.0;
};

std::vector<Kept> KeptBytes(const std::vector<TimedAction>& list) {
  std::vector<Kept> kept;
  for (const TimedAction& timed : list) {
    const double after = IsCompute(timed.action.op) ? static_cast<double>(timed.bytes) : 0.0;
    kept.push_back({std::max(after, static_cast<double>(timed.peak_stash_bytes)), after});
  }
  return kept;
}

std::vector<Kept> KeptUnits(const std::vector<double>& after) {
  std::vector<Kept> kept;
  double before = 0.0;
  for (const double amount : after) {
    kept.push_back({std::max(before, amount), amount});
    before = amount;
  }
  return kept;
}

void AddLevel(int64_t from_ns, double amount, RankStash& stash) {
  if (amount > stash.peak) {
    stash.peak = amount;
    stash.peak_ns = from_ns;
  }
  std::vector<RankStash::Level>& levels = stash.levels;
  if (!levels.empty() && levels.back().from_ns == from_ns) levels.pop_back();
  if (amount != (levels.empty() ? 0.0 : levels.back().amount)) levels.push_back({from_ns, amount});
}

RankStash OverTime(const std::vector<TimedAction>& list, const std::vector<Kept>& kept) {
  RankStash stash;
  const Kept* last = nullptr;
  int64_t last_end_ns = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!IsCompute(list[i].action.op)) continue;
    // If two are performed together, the second one tells what is kept meanwhile.
    if (last != nullptr && last_end_ns <= list[i].start_ns) {
      AddLevel(last_end_ns, last->after, stash);
    }
    AddLevel(list[i].start_ns, kept[i].during, stash);
    last = &kept[i];
    last_end_ns = list[i].end_ns;
  }
  if (last != nullptr) AddLevel(last_end_ns, last->after, stash);
  return stash;
}

}  // namespace

TraceStash StashOf(const Trace& trace, absl::Span<const StageStash> unit_stash) {
  TraceStash all;
  for (const std::vector<TimedAction>& list : trace.actions) {
    all.ranks.push_back(OverTime(list, KeptBytes(list)));
  }
  const auto keeps_nothing = [&all] {
    return std::all_of(all.ranks.begin(), all.ranks.end(),
                       [](const RankStash& rank) { return rank.peak == 0.0; });
  };
  all.in_bytes = !keeps_nothing();
  if (all.in_bytes) return all;
  all.ranks.clear();
  if (unit_stash.empty()) return all;
  Schedule schedule{.num_micro_batches = trace.num_micro_batches,
                    .rank_of_stage = trace.rank_of_stage};
  for (const std::vector<TimedAction>& list : trace.actions) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const TimedAction& timed : list) actions.push_back(timed.action);
  }
  const std::vector<std::vector<double>> after = StashAfter(schedule, unit_stash);
  for (size_t rank = 0; rank < after.size(); ++rank) {
    all.ranks.push_back(OverTime(trace.actions[rank], KeptUnits(after[rank])));
  }
  if (keeps_nothing()) all.ranks.clear();
  return all;
}

}  // namespace stagecoach::schedule
