#include "partition/search/rounds.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/search/best_cut.h"
#include "partition/search/order_search.h"

namespace stagecoach::partition {
namespace {

using schedule::Schedule;

constexpr int kMostRounds = 8;
// So many rounds in a row that gain less than this share are the last; but as long as a plan is
// this far from its bound, a limited time is used.
constexpr double kWorthAnother = 1e-4;
constexpr int kIdleRounds = 2;
constexpr double kWorthAllTime = 0.05;
// From which scale on cuts for other requests are not only those that are found soon.
constexpr size_t kWholeScale = 8;
// Tighter ones first: what fits in them fits.
constexpr Relaxation kRelaxations[] = {
    {},
    {.memory = 0.95},
    {.memory = 0.85},
    {.memory = 0.7},
    {.memory = 0.5},
    {.memory = 1.1},
    {.memory = 1.3},
    {.memory = 2},
    {.memory = Relaxation::kUnlimited},
    {.links = 0.5},
    {.links = 2},
    {.links = 0.25},
    {.links = Relaxation::kUnlimited},
};
// Of the first round; each later one has twice as much.
constexpr size_t kSeeded = 6;    // choices that are cut for other requests
constexpr size_t kImproved = 3;  // plans whose boundaries are moved
constexpr size_t kFreed = 4;     // choices that are cut as if memory had no limit
constexpr int kKicks = 8;
constexpr size_t kNearby = 12;        // cuts that orders are searched for
constexpr size_t kMovedTogether = 4;  // neighboring boundaries, of which two are moved
constexpr int64_t kActionsToBegin = 2'000'000;
constexpr int64_t kActionsOfDescent = 20'000'000;
constexpr int64_t kActionsOfKick = 3'000'000;
// Plans that are further behind the best are not improved.
constexpr double kFarFromBest = 1.25;
constexpr int kMostKicked = 3;  // boundaries at once

int64_t PeakBytes(const FoundPlan& best) {
  const absl::StatusOr<CompiledPlan> compiled = best.pipeline->Compile(best.found.cut);
  int64_t peak_bytes = 1;
  if (!compiled.ok()) return peak_bytes;
  for (const RankReport& rank : compiled->ranks) {
    peak_bytes = std::max(peak_bytes, rank.peak_bytes());
  }
  return peak_bytes;
}

}  // namespace

absl::Status Rounds::Begin() {
  if (plans_.empty()) return absl::OkStatus();
  bound_ns_ = space_.candidates().front().lower_bound_ns;
  most_actions_ = kActionsToBegin;
  return ImproveCuts();
}

absl::Status Rounds::ImproveCuts() {
  RETURN_IF_ERROR(MoveBoundaries());
  RETURN_IF_ERROR(TryOtherSchedules());
  return MoveBoundaries();
}

absl::StatusOr<int> Rounds::Run(bool searches_orders) {
  bound_ns_ = plans_.bound_ns();
  int count = 0, idle = 0;
  for (scale_ = 1; count < kMostRounds && !IsOver(); scale_ *= 2) {
    most_actions_ = kActionsOfDescent * static_cast<int64_t>(scale_);
    const bool had_plan = !plans_.empty();
    const double before_ns = had_plan ? plans_.best().found.objective_ns : 0;
    ++count;
    RETURN_IF_ERROR(ImproveCuts());
    RETURN_IF_ERROR(TryOtherRequests());
    RETURN_IF_ERROR(ImproveCuts());
    if (searches_orders) {
      RETURN_IF_ERROR(TryOrdersNearby());
      RETURN_IF_ERROR(TryOrdersOfFreeCuts());
      RETURN_IF_ERROR(MoveBoundaries());
      RETURN_IF_ERROR(TryOrders());
    }
    RETURN_IF_ERROR(Kick());
    if (plans_.empty()) break;
    const double gain = had_plan ? 1 - plans_.best().found.objective_ns / before_ns : 1.0;
    idle = gain < kWorthAnother ? idle + 1 : 0;
    const bool uses_all_time = plans_.budget().has_deadline() && !IsWithin(kWorthAllTime);
    if (idle >= kIdleRounds && !uses_all_time) break;
  }
  return count;
}

bool Rounds::IsOver() const {
  if (plans_.budget().IsReached()) return true;
  return !plans_.empty() && IsWithin(kSmallGap);
}

bool Rounds::IsWithin(double gap) const {
  return (1 - gap) * plans_.best().found.objective_ns <= bound_ns_;
}

bool Rounds::IsNew(absl::string_view what, const Candidate& candidate, absl::string_view schedule,
                   absl::Span<const int> first_layer) {
  const std::string shape =
      absl::StrCat(candidate.chunks, " ", candidate.replicas(), " ", candidate.micro_batches, " ",
                   static_cast<int>(candidate.order));
  const std::string boundaries = absl::StrJoin(first_layer, ",");
  return done_.insert(absl::StrCat(what, " ", schedule, " ", shape, " ", boundaries)).second;
}

// The best plans, the best of each choice first.
std::vector<FoundPlan> Rounds::BestOfChoices(size_t count) const {
  std::vector<FoundPlan> best;
  for (const FoundPlan& plan : plans_.plans()) {
    if (best.size() == count || plans_.IsFar(plan.found.objective_ns, kFarFromBest)) break;
    const bool is_new = std::none_of(best.begin(), best.end(), [&](const FoundPlan& known) {
      return known.IsOfChoice(plan) && known.candidate.order == plan.candidate.order;
    });
    if (!is_new || plans_.IsHopeless(plan.candidate.lower_bound_ns)) continue;
    best.push_back(plan);
    best.back().pipeline = nullptr;
  }
  return best;
}

// The candidates with the best plans; then those without any, the lowest bound first.
std::vector<Candidate> Rounds::BestCandidates(size_t count) const {
  std::vector<Candidate> best;
  const auto add = [&](const Candidate& candidate) {
    const auto is_same = [&](const Candidate& known) {
      return known.IsOfChoice(candidate) && known.order == candidate.order;
    };
    if (best.size() < count && std::none_of(best.begin(), best.end(), is_same)) {
      best.push_back(candidate);
    }
  };
  for (const FoundPlan& plan : plans_.plans()) {
    if (!plans_.IsHopeless(plan.candidate.lower_bound_ns)) add(plan.candidate);
  }
  for (const Candidate& candidate : space_.candidates()) {
    if (plans_.IsHopeless(candidate.lower_bound_ns)) break;
    add(candidate);
  }
  return best;
}

// Cuts the best candidates as if devices were others.
absl::Status Rounds::TryOtherRequests() {
  const std::vector<Candidate> candidates = BestCandidates(kSeeded * scale_);
  const bool has_links = request_.cluster.within_host != schedule::Link() ||
                         request_.cluster.between_hosts != schedule::Link();
  const int64_t taken_bytes = plans_.empty() ? 0 : PeakBytes(plans_.best());
  for (const Candidate& candidate : candidates) {
    const absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
    if (!schedule.ok()) continue;
    for (Relaxation relaxation : kRelaxations) {
      if (IsOver()) return absl::OkStatus();
      const bool has_more = relaxation.memory > 1 && !request_.cluster.limits_memory();
      if (has_more || (relaxation.links != 1 && !has_links)) continue;
      if (relaxation.memory < 1) relaxation.unlimited_bytes = taken_bytes;
      RETURN_IF_ERROR(TryOther(candidate, *schedule, relaxation));
    }
  }
  return absl::OkStatus();
}

absl::Status Rounds::TryOther(const Candidate& candidate, const Schedule& schedule,
                              const Relaxation& relaxation) {
  const std::string what = absl::StrCat(scale_ < kWholeScale ? "quick" : "whole", " ",
                                        relaxation.memory, " ", relaxation.links);
  if (!IsNew(what, candidate, candidate.schedule)) return absl::OkStatus();
  absl::StatusOr<CutEvaluator> other = space_.EvaluatorOf(candidate, schedule, relaxation);
  if (!other.ok()) return absl::OkStatus();  // the schedule refuses the cluster, or time is over
  BestCutOptions options = plans_.CutOptions();
  options.quick = scale_ < kWholeScale ? BestCutOptions::Quick::kFew : BestCutOptions::Quick::kNo;
  absl::StatusOr<BestCut> found = FindBestCut(*other, options, plans_.budget());
  if (!found.ok()) return absl::OkStatus();  // it does not fit there, or time is over
  plans_.CountSimulated(found->simulated);
  return Start(candidate, schedule, std::move(found->cut.first_layer), /*most_actions=*/0);
}

// Considers a cut, and moves its boundaries with so many simulated actions at most.
absl::Status Rounds::Start(const Candidate& candidate, const Schedule& schedule,
                           std::vector<int> start, int64_t most_actions) {
  BestCutOptions options = plans_.CutOptions();
  options.start = std::move(start);
  options.may_refine = most_actions > 0;
  options.most_actions = most_actions;
  const int layers_of_stage = request_.profile.num_layers() / candidate.num_stages();
  while (options.longest_step < layers_of_stage) options.longest_step *= 2;
  return plans_.Consider(candidate, schedule, options);
}

absl::Status Rounds::TryOtherSchedules() {
  for (const FoundPlan& plan : BestOfChoices(kImproved * scale_)) {
    for (const Candidate& candidate : space_.candidates()) {
      if (IsOver()) return absl::OkStatus();
      if (plans_.IsHopeless(candidate.lower_bound_ns)) break;
      const Candidate& own = plan.candidate;
      const bool is_same_shape = candidate.IsOfShape(own) && candidate.order == own.order &&
                                 candidate.schedule != own.schedule;
      if (!is_same_shape) continue;
      const absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
      if (!schedule.ok()) continue;
      RETURN_IF_ERROR(Start(candidate, *schedule, plan.found.cut.first_layer, 0));
    }
  }
  return absl::OkStatus();
}

absl::Status Rounds::MoveBoundaries() {
  const std::string what = absl::StrCat("move ", most_actions_);
  for (const FoundPlan& plan : BestOfChoices(kImproved * scale_)) {
    if (IsOver()) return absl::OkStatus();
    const std::vector<int>& cut = plan.found.cut.first_layer;
    if (plan.found.is_optimal || !IsNew(what, plan.candidate, plan.schedule.name, cut)) continue;
    RETURN_IF_ERROR(Start(plan.candidate, plan.schedule, cut, most_actions_));
  }
  return absl::OkStatus();
}

absl::Status Rounds::TryOrders() {
  std::vector<FoundPlan> starts;
  for (FoundPlan& plan : BestOfChoices(2 * kImproved * scale_)) {
    const std::string what = absl::StrCat("order ", scale_);
    if (IsNew(what, plan.candidate, /*schedule=*/"", plan.found.cut.first_layer)) {
      starts.push_back(std::move(plan));
    }
  }
  const int scale = 2 * static_cast<int>(scale_);  // once it was done before the rounds
  for (const double links : {1.0, 0.25, 4.0, Relaxation::kUnlimited}) {
    const Relaxation other = {.links = links};
    RETURN_IF_ERROR(SearchOrdersFrom(request_, space_, plans_, starts, scale, other).status());
  }
  return SearchOrders(request_, space_, plans_, scale).status();
}

absl::Status Rounds::TryOrdersNearby() {
  const int scale = static_cast<int>(scale_);
  bool has_improved = true;
  while (has_improved && !plans_.empty() && !IsOver()) {
    const double before_ns = plans_.best().found.objective_ns;
    for (const FoundPlan& plan : BestOfChoices(scale_)) {
      ASSIGN_OR_RETURN(const std::vector<FoundPlan> starts, Nearby(plan));
      RETURN_IF_ERROR(SearchOrdersFrom(request_, space_, plans_, starts, scale).status());
    }
    has_improved = plans_.best().found.objective_ns < (1 - kWorthAnother) * before_ns;
  }
  return absl::OkStatus();
}

absl::Status Rounds::TryOrdersOfFreeCuts() {
  if (!request_.cluster.limits_memory()) return absl::OkStatus();
  for (const Candidate& candidate : BestCandidates(kFreed * scale_)) {
    if (IsOver()) return absl::OkStatus();
    absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
    if (!schedule.ok()) continue;
    absl::StatusOr<CutEvaluator> free =
        space_.EvaluatorOf(candidate, *schedule, {.memory = Relaxation::kUnlimited});
    if (!free.ok()) continue;
    absl::StatusOr<BestCut> found = FindBestCut(*free, plans_.CutOptions(), plans_.budget());
    if (!found.ok()) continue;
    const FoundPlan plan = {
        .candidate = candidate, .schedule = *std::move(schedule), .found = *std::move(found)};
    ASSIGN_OR_RETURN(std::vector<FoundPlan> starts, Nearby(plan));
    RETURN_IF_ERROR(
        SearchOrdersFrom(request_, space_, plans_, starts, static_cast<int>(scale_)).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FoundPlan>> Rounds::Nearby(const FoundPlan& plan) {
  ASSIGN_OR_RETURN(const CutEvaluator pipeline, space_.EvaluatorOf(plan.candidate, plan.schedule));
  const std::vector<int>& first_layer = plan.found.cut.first_layer;
  std::vector<std::pair<double, std::vector<int>>> nearby;
  const auto add = [&](const std::vector<int>& moved) -> absl::Status {
    const bool is_cut =
        std::adjacent_find(moved.begin(), moved.end(), std::greater_equal<>()) == moved.end() &&
        moved.back() < pipeline.num_layers();
    if (!is_cut || IsOver()) return absl::OkStatus();
    if (plans_.IsHopeless(pipeline.BusiestNs({moved, {}}))) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t step_ns, pipeline.StepNs({moved, {}}));
    nearby.emplace_back(static_cast<double>(step_ns), moved);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add(first_layer));
  for (size_t i = 1; i < first_layer.size(); ++i) {
    for (const int step : {-3, -2, -1, 1, 2, 3}) {
      std::vector<int> moved = first_layer;
      moved[i] += step;
      RETURN_IF_ERROR(add(moved));
      for (size_t j = i + 1; j < std::min(first_layer.size(), i + kMovedTogether); ++j) {
        for (const int other : {-1, 1}) {
          std::vector<int> both = moved;
          both[j] += other;
          RETURN_IF_ERROR(add(both));
        }
      }
    }
  }
  plans_.CountSimulated(static_cast<int>(nearby.size()));
  std::stable_sort(nearby.begin(), nearby.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<FoundPlan> starts;
  for (auto& [step_ns, moved] : nearby) {
    if (starts.size() == kNearby * scale_) break;
    if (!IsNew(absl::StrCat("order ", scale_), plan.candidate, /*schedule=*/"", moved)) continue;
    starts.push_back(plan);
    starts.back().found.cut = {std::move(moved), {}};
  }
  return starts;
}

absl::Status Rounds::Kick() {
  for (int kick = 0; kick < kKicks * static_cast<int>(scale_); ++kick) {
    if (IsOver() || plans_.empty()) return absl::OkStatus();
    const FoundPlan plan = plans_.best();
    if (plan.found.is_optimal || plan.candidate.num_stages() < 2) return absl::OkStatus();
    RETURN_IF_ERROR(Start(plan.candidate, plan.schedule, Kicked(plan), kActionsOfKick * scale_));
  }
  return absl::OkStatus();
}

// Its boundaries, of which a few are elsewhere between their neighbors.
std::vector<int> Rounds::Kicked(const FoundPlan& plan) {
  std::vector<int> first_layer = plan.found.cut.first_layer;
  const auto stages = static_cast<int>(first_layer.size());
  const int count = 1 + Draw(kMostKicked);
  for (int i = 0; i < count; ++i) {
    const auto stage = static_cast<size_t>(1 + Draw(stages - 1));
    const int low = first_layer[stage - 1] + 1;
    const int high =
        stage + 1 < first_layer.size() ? first_layer[stage + 1] : request_.profile.num_layers();
    first_layer[stage] = low + Draw(high - low);
  }
  return first_layer;
}

}  // namespace stagecoach::partition
