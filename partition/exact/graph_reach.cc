#include "partition/exact/graph_reach.h"

#include <numeric>
#include <tuple>

namespace stagecoach::partition {
namespace {

std::vector<int64_t> UnitsOfSets(const ChainTerms& terms, const ClosedSets& sets, int stage) {
  std::vector<int64_t> units = {0};
  for (int set = 1; set < sets.size(); ++set) {
    units.push_back(units[sets.parent(set)] + terms.LayerUnits(sets.added(set), stage));
  }
  return units;
}

std::vector<int64_t> BytesOfSets(const ChainTerms& terms, const ClosedSets& sets, int stage) {
  std::vector<int64_t> bytes = {0};
  for (int set = 1; set < sets.size(); ++set) {
    const int layer = sets.added(set);
    bytes.push_back(bytes[sets.parent(set)] + terms.BytesBefore(layer + 1, stage) -
                    terms.BytesBefore(layer, stage));
  }
  return bytes;
}

}  // namespace

GraphReach::GraphReach(const ChainTerms& terms, const ClosedSets& sets,
                       const std::function<bool()>& is_over)
    : terms_(terms),
      sets_(sets),
      is_over_(is_over),
      order_(static_cast<size_t>(sets.size())),
      places_(order_.size()),
      begins_(order_.size()) {
  least_units_ = UnitsOfSets(terms, sets, terms.FastestStage());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    return std::tie(least_units_[a], a) < std::tie(least_units_[b], b);
  });
  for (size_t place = 0; place < order_.size(); ++place) {
    places_[order_[place]] = static_cast<int>(place);
  }
}

bool GraphReach::Probe(int64_t limit) {
  limit_ = limit;
  needed_ = ChainTerms::kNever;
  reached_.assign(static_cast<size_t>(terms_.stages()) + 1, {});
  reached_[0].push_back({.place = 0, .begin = 0});
  for (int stage = 0; stage < terms_.stages(); ++stage) {
    was_over_ = was_over_ || (is_over_ != nullptr && is_over_());
    if (was_over_ || !Advance(stage)) return false;
  }
  FindCut();
  return true;
}

void GraphReach::StartStage(int stage) {
  if (stage_ < 0 || !terms_.HaveEqualSpeeds(stage_, stage)) {
    units_ = UnitsOfSets(terms_, sets_, stage);
  }
  stage_ = stage;
  if (terms_.limits_memory()) bytes_ = BytesOfSets(terms_, sets_, stage);
}

// Advances from the sets that the previous stages reached to those reached by one more. Sets are
// visited after those that they include, and each passes on what a stage that continues could have
// begun with.
bool GraphReach::Advance(int stage) {
  StartStage(stage);
  const std::vector<Reached>& sources = reached_[static_cast<size_t>(stage)];
  auto source = sources.begin();
  int place = source->place;
  int last_place = place;  // last place that received a begin
  while (place <= last_place || source != sources.end()) {
    if (place > last_place) place = source->place;
    const int set = order_[place];
    DropSlowOrLarge(set);
    EndStage(set);
    if (source != sources.end() && source->place == place) {
      BeginStage(set);
      ++source;
    }
    if (!begins_[set].empty()) {
      for (const int next : sets_.next(set)) {
        for (const Begin& begin : begins_[set]) Offer(begin, next);
        last_place = std::max(last_place, places_[next]);
      }
      begins_[set].clear();
    }
    ++place;
  }
  return !reached_[static_cast<size_t>(stage) + 1].empty();
}

// If a stage that ends with the set is too long or too large, so is one that continues.
void GraphReach::DropSlowOrLarge(int set) {
  auto& begins = begins_[set];
  const auto is_misfit = [&](const Begin& begin) {
    return terms_.limits_memory() && bytes_[set] - begin.bytes > terms_.BudgetBytes(stage_);
  };
  const auto is_slow = [&](const Begin& begin) {
    const int64_t units = units_[set] + begin.before;
    if (units > limit_) Need(units);
    return units > limit_;
  };
  begins.erase(
      std::remove_if(begins.begin(), begins.end(),
                     [&](const Begin& begin) { return is_misfit(begin) || is_slow(begin); }),
      begins.end());
}

void GraphReach::EndStage(int set) {
  const auto& begins = begins_[set];
  const bool is_full = set + 1 == sets_.size();
  const bool is_last = stage_ + 1 == terms_.stages();
  if (begins.empty() || is_full != is_last) return;
  if (!is_last && !CanRestFit(set)) return;
  const auto latest =
      std::min_element(begins.begin(), begins.end(),
                       [](const Begin& a, const Begin& b) { return a.before < b.before; });
  const int64_t send = SendUnits(set);
  const int64_t units = terms_.overlaps_messages() ? send : units_[set] + latest->before + send;
  if (units > limit_) {
    Need(units);
    return;
  }
  reached_[static_cast<size_t>(stage_) + 1].push_back({places_[set], latest->set});
}

// Returns true if the stages behind the current one could do the rest within the limit.
bool GraphReach::CanRestFit(int set) {
  const int64_t rest = least_units_.back() - least_units_[set];
  const int64_t stages = terms_.stages() - stage_ - 1;
  const int64_t needed = rest / stages + (rest % stages != 0 ? 1 : 0);
  if (needed > limit_) Need(needed);
  return needed <= limit_;
}

void GraphReach::BeginStage(int set) {
  const int64_t receive = ReceiveUnits(set);
  Begin begin = {.set = set, .before = -units_[set]};
  if (terms_.limits_memory()) begin.bytes = bytes_[set];
  if (!terms_.overlaps_messages()) {
    begin.before += receive;
  } else if (receive > limit_) {
    Need(receive);
    return;
  }
  Offer(begin, set);
}

void GraphReach::Offer(const Begin& begin, int set) {
  auto& begins = begins_[set];
  const auto is_as_good = [](const Begin& a, const Begin& b) {
    return a.before <= b.before && a.bytes >= b.bytes;
  };
  if (std::any_of(begins.begin(), begins.end(),
                  [&](const Begin& other) { return is_as_good(other, begin); })) {
    return;
  }
  begins.erase(std::remove_if(begins.begin(), begins.end(),
                              [&](const Begin& other) { return is_as_good(begin, other); }),
               begins.end());
  begins.push_back(begin);
}

int64_t GraphReach::SendUnits(int set) const {
  const bool sends = terms_.has_messages() && stage_ + 1 < terms_.stages();
  return sends ? terms_.MessageUnits(stage_, sets_.cut_bytes(set)) : 0;
}

int64_t GraphReach::ReceiveUnits(int set) const {
  const bool receives = terms_.has_messages() && stage_ > 0;
  return receives ? terms_.MessageUnits(stage_ - 1, sets_.cut_bytes(set)) : 0;
}

void GraphReach::FindCut() {
  int set = sets_.size() - 1;
  done_.assign(static_cast<size_t>(terms_.stages()), set);
  bottleneck_ = 0;
  for (int stage = terms_.stages() - 1; stage >= 0; --stage) {
    StartStage(stage);
    const std::vector<Reached>& reached = reached_[static_cast<size_t>(stage) + 1];
    const auto found =
        std::lower_bound(reached.begin(), reached.end(), places_[set],
                         [](const Reached& entry, int place) { return entry.place < place; });
    done_[stage] = set;
    const int64_t units = terms_.StageUnits(units_[set] - units_[found->begin],
                                            ReceiveUnits(found->begin), SendUnits(set));
    bottleneck_ = std::max(bottleneck_, units);
    set = found->begin;
  }
}

}  // namespace stagecoach::partition
