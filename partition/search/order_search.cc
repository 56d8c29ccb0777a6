#include "partition/search/order_search.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/plan/stash_bytes.h"
#include "partition/search/best_cut.h"
#include "schedule/search/automatic.h"

namespace stagecoach::partition {
namespace {

using schedule::Placement;
using schedule::Rank;
using schedule::Schedule;

// Orders are searched from the best few plans of each kind, unless those are far behind, and then
// from a few cuts of each shape.
constexpr size_t kBestOfAKind = 2;
constexpr size_t kMostBest = 3;
constexpr size_t kCutsOfAShape = 3;
constexpr double kFarBehind = 1.15;
// The shares of the devices' memory for which the cuts are made that orders start from.
constexpr double kMemoryShares[] = {1.0, 0.95, 0.9};
// What searched orders may stash in turn: of what the first rank stashes under 1F1B, so that what
// is tried does not move with memory; and of what memory leaves.
constexpr double kUsualShares[] = {2.0, 1.5, 1.0, 0.75, 0.5, 0.35};
constexpr double kRoomShares[] = {1.0, 0.85, 0.65, 0.45};
// Of all that a search can do: it finds nearly the best order with a tenth, and several orders, of
// which more fit, are worth more than a better one.
constexpr double kSearchEffort = 0.1;
// Bounds of the sum of ranks * micro-batches * chunks, so that all searches together take a second
// or two: of those from the best plans, and of those from all shapes. And of that product times
// stages^2, where a cut is refined to start from, and where one with recomputation is.
constexpr int64_t kMaxFromBest = int64_t{1} << 13;
constexpr int64_t kMaxFromShapes = int64_t{3} << 10;
constexpr int64_t kMaxRefinedStart = int64_t{1} << 17;
constexpr int64_t kMaxRefinedFound = int64_t{1} << 13;

// What decides how large a search is and what it may find, but for the cut.
using Shape = std::tuple<int, int, int, LayerOrder>;

Shape ShapeOf(const Candidate& candidate) {
  return {candidate.chunks, candidate.replicas(), candidate.micro_batches, candidate.order};
}

// A cut that an order of our own is made for, with the schedule it was found under.
struct Start {
  Candidate candidate;
  Schedule schedule;
  BestCut found;
};

class OrderSearch {
 public:
  OrderSearch(const PlannerRequest& request, CandidateSpace& space, FoundPlans& plans, int scale)
      : request_(request),
        space_(space),
        plans_(plans),
        effort_(std::min(scale * kSearchEffort, 1.0)),
        left_for_best_(scale * kMaxFromBest),
        left_for_shapes_(scale * kMaxFromShapes) {}

  absl::StatusOr<int> SearchFrom(absl::Span<const FoundPlan> starts, const Relaxation& relaxation) {
    relaxation_ = relaxation;
    for (const FoundPlan& plan : starts) {
      if (!IsSearched(plan.candidate, plan.schedule)) continue;
      int64_t one_shape = kMaxFromShapes;
      RETURN_IF_ERROR(SearchOrder({plan.candidate, plan.schedule, plan.found}, one_shape));
    }
    return considered_;
  }

  absl::StatusOr<int> Search() {
    for (const Start& start : BestStarts()) RETURN_IF_ERROR(SearchOrder(start, left_for_best_));
    if (plans_.budget().IsReached()) return considered_;
    ASSIGN_OR_RETURN(const std::vector<std::vector<Start>> free, FreeStarts());
    for (size_t i = 0; i < free.size(); ++i) {
      if (plans_.IsFar(free[i].front().found.objective_ns, kFarBehind)) break;
      const auto shapes_left = static_cast<int64_t>(free.size() - i);
      int64_t share = left_for_shapes_ / shapes_left;
      left_for_shapes_ -= share;
      RETURN_IF_ERROR(SearchShape(free[i], share));
      left_for_shapes_ += share;
    }
    return considered_;
  }

 private:
  // The best few that were found to fit, unless they are far behind.
  std::vector<Start> BestStarts() const {
    std::vector<Start> starts;
    std::map<std::pair<int, int>, size_t> count;  // by chunks and replicas
    for (const FoundPlan& plan : plans_.plans()) {
      const Candidate& own = plan.candidate;
      if (!IsSearched(own, plan.schedule)) continue;
      if (plans_.IsFar(plan.found.objective_ns, kFarBehind) || starts.size() == kMostBest) break;
      if (plans_.IsHopeless(own.lower_bound_ns) ||
          ++count[{own.chunks, own.replicas()}] > kBestOfAKind) {
        continue;
      }
      starts.push_back({own, plan.schedule, plan.found});
    }
    return starts;
  }

  static bool IsSearched(const Candidate& candidate, const Schedule& schedule) {
    const bool is_v = candidate.chunks == 2 && schedule.rank_of_stage.back() == Rank(0);
    return candidate.ranks > 1 && (candidate.chunks == 1 || is_v);
  }

  // Returns a measure of the time that a search takes.
  static int64_t SearchSize(const Candidate& candidate) {
    return int64_t{candidate.ranks} * candidate.micro_batches_of_each() * candidate.chunks;
  }

  // For each shape that is not hopeless the best few cuts that no memory limits; the most promising
  // shape first.
  absl::StatusOr<std::vector<std::vector<Start>>> FreeStarts() {
    std::vector<std::vector<Start>> shapes;
    std::set<Shape> known;
    for (const Candidate& candidate : space_.candidates()) {
      if (plans_.IsHopeless(candidate.lower_bound_ns) || plans_.budget().IsReached()) break;
      if (SearchSize(candidate) > kMaxFromShapes) continue;
      if (!known.insert(ShapeOf(candidate)).second) continue;
      ASSIGN_OR_RETURN(std::vector<Start> starts, PlainStarts(candidate, Relaxation::kUnlimited));
      if (!starts.empty()) shapes.push_back(std::move(starts));
    }
    std::stable_sort(shapes.begin(), shapes.end(), [](const auto& a, const auto& b) {
      return a.front().found.objective_ns < b.front().found.objective_ns;
    });
    return shapes;
  }

  // The best few cuts, without recomputation, of a shape under all its schedules, on devices with
  // that share of their memory.
  absl::StatusOr<std::vector<Start>> PlainStarts(const Candidate& shape, double memory_share) {
    BestCutOptions options = plans_.CutOptions();
    options.may_recompute = false;
    std::vector<Start> starts;
    for (const Candidate& candidate : space_.candidates()) {
      if (ShapeOf(candidate) != ShapeOf(shape)) continue;
      absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
      if (!schedule.ok() || !IsSearched(candidate, *schedule)) continue;
      absl::StatusOr<CutEvaluator> pipeline =
          space_.EvaluatorOf(candidate, *schedule, {.memory = memory_share});
      if (!pipeline.ok()) continue;
      absl::StatusOr<BestCut> found = FindBestCut(*pipeline, options, plans_.budget());
      if (absl::IsResourceExhausted(found.status()) || IsCutShort(found.status())) continue;
      RETURN_IF_ERROR(found.status());
      plans_.CountSimulated(found->simulated);
      starts.push_back({candidate, *std::move(schedule), *std::move(found)});
    }
    SortByObjective(starts);
    const bool is_refined = !starts.empty() && !starts.front().found.is_optimal &&
                            RefinementSize(shape) <= kMaxRefinedStart;
    if (is_refined) {
      Start refined = starts.front();
      ASSIGN_OR_RETURN(
          CutEvaluator pipeline,
          space_.EvaluatorOf(refined.candidate, refined.schedule, {.memory = memory_share}));
      options.may_refine = true;
      absl::StatusOr<BestCut> found = FindBestCut(pipeline, options, plans_.budget());
      if (found.ok()) {
        refined.found = *std::move(found);
        plans_.CountSimulated(refined.found.simulated);
        starts.insert(starts.begin(), std::move(refined));
      } else if (!IsCutShort(found.status())) {
        return found.status();
      }
    }
    DropEqualCuts(starts);
    if (starts.size() > kCutsOfAShape) starts.resize(kCutsOfAShape);
    return starts;
  }

  // Keeps the first of equal cuts.
  static void DropEqualCuts(std::vector<Start>& starts) {
    std::vector<Start> distinct;
    for (Start& start : starts) {
      const bool is_known = std::any_of(distinct.begin(), distinct.end(), [&](const Start& known) {
        return known.found.cut == start.found.cut;
      });
      if (!is_known) distinct.push_back(std::move(start));
    }
    starts = std::move(distinct);
  }

  static void SortByObjective(std::vector<Start>& starts) {
    std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
      return a.found.objective_ns < b.found.objective_ns;
    });
  }

  // The best few cuts of a shape that were found to fit.
  std::vector<Start> FoundStarts(const Candidate& shape) const {
    std::vector<Start> starts;
    for (const FoundPlan& plan : plans_.plans()) {
      const bool is_of_shape = ShapeOf(plan.candidate) == ShapeOf(shape);
      if (!is_of_shape || !IsSearched(plan.candidate, plan.schedule)) continue;
      starts.push_back({plan.candidate, plan.schedule, plan.found});
    }
    DropEqualCuts(starts);
    if (starts.size() > kCutsOfAShape) starts.resize(kCutsOfAShape);
    return starts;
  }

  // Orders for one shape, from its best cuts without a limit of memory and with one: also with a
  // tighter one, since a cut that leaves room may gain more by its order than it loses.
  absl::Status SearchShape(const std::vector<Start>& free, int64_t& searches_left) {
    const Candidate& shape = free.front().candidate;
    for (const Start& start : free) RETURN_IF_ERROR(SearchOrder(start, searches_left));
    if (request_.cluster.limits_memory()) {
      for (const double share : kMemoryShares) {
        if (SearchSize(shape) > searches_left || plans_.budget().IsReached()) break;
        ASSIGN_OR_RETURN(const std::vector<Start> starts, PlainStarts(shape, share));
        for (const Start& start : starts) RETURN_IF_ERROR(SearchOrder(start, searches_left));
      }
    }
    RETURN_IF_ERROR(RefineFound(shape));
    for (const Start& start : FoundStarts(shape)) {
      RETURN_IF_ERROR(SearchOrder(start, searches_left));
    }
    return absl::OkStatus();
  }

  // Refines the best plan of the shape as if no other shape were asked for.
  absl::Status RefineFound(const Candidate& shape) {
    const auto best =
        std::find_if(plans_.plans().begin(), plans_.plans().end(), [&](const FoundPlan& plan) {
          return ShapeOf(plan.candidate) == ShapeOf(shape) && plan.schedule.name != "auto";
        });
    if (best == plans_.plans().end() || best->found.is_optimal) return absl::OkStatus();
    if (RefinementSize(shape) >= kMaxRefinedFound) return absl::OkStatus();
    if (plans_.budget().IsReached()) return absl::OkStatus();
    return plans_.Refine(*best);
  }

  static int64_t RefinementSize(const Candidate& candidate) {
    const int64_t stages = candidate.num_stages();
    return SearchSize(candidate) * stages * stages;
  }

  // Orders for one cut, under one limit of the stash after the other.
  absl::Status SearchOrder(const Start& start, int64_t& searches_left) {
    Candidate candidate = start.candidate;
    ASSIGN_OR_RETURN(candidate.lower_bound_ns, space_.LowerBoundNs(candidate));
    if (plans_.IsHopeless(candidate.lower_bound_ns)) return absl::OkStatus();
    const int64_t size = SearchSize(candidate);
    if (size > searches_left) return absl::OkStatus();
    const CutEvaluator::Cut& cut = start.found.cut;
    if (!searched_.emplace(ShapeOf(candidate), cut.first_layer, cut.recomputed).second) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const CutEvaluator pipeline, space_.EvaluatorOf(candidate, start.schedule));
    ASSIGN_OR_RETURN(const CompiledPlan compiled, pipeline.Compile(cut));
    const std::vector<double> room = RoomOf(pipeline, compiled);
    if (*std::min_element(room.begin(), room.end()) <= 0) return absl::OkStatus();
    schedule::AutomaticRequest search;
    search.ranks = candidate.ranks;
    search.micro_batches = candidate.micro_batches_of_each();
    search.chunks = candidate.chunks;
    search.placement = candidate.chunks == 2 ? Placement::kV : Placement::kLoop;
    ASSIGN_OR_RETURN(const CutEvaluator other,
                     space_.EvaluatorOf(candidate, start.schedule, relaxation_));
    search.costs = other.CostsOf(cut);
    search.objective = schedule::OrderObjective::kStep;
    search.sends = pipeline.sends();
    search.effort = effort_;
    search.stash = StashBytes(compiled.memory_of_stages());
    BestCutOptions options = plans_.CutOptions();
    options.only_cut = cut.first_layer;  // the order is made for its costs
    for (std::vector<double>& limit : StashLimits(UsualStash(compiled, search.stash), room)) {
      if (size > searches_left || plans_.budget().IsReached()) break;
      searches_left -= size;
      search.stash_limit = std::move(limit);
      absl::StatusOr<Schedule> order = schedule::Automatic(search);
      if (absl::IsResourceExhausted(order.status())) continue;  // not even one micro-batch
      if (absl::IsInvalidArgument(order.status())) break;       // too many passes to search
      RETURN_IF_ERROR(order.status());
      ++considered_;
      ASSIGN_OR_RETURN(const double step_ns, StepNs(candidate, *order, cut));
      if (plans_.plans().size() < 2 || step_ns < plans_.plans()[1].found.objective_ns) {
        RETURN_IF_ERROR(plans_.Consider(candidate, *std::move(order), options));
      }
      // Lower limits only make it slower, nearly always.
      if (plans_.IsHopeless(step_ns)) break;
    }
    return absl::OkStatus();
  }

  // Whatever memory it takes.
  absl::StatusOr<double> StepNs(const Candidate& candidate, const Schedule& order,
                                const CutEvaluator::Cut& cut) {
    ASSIGN_OR_RETURN(const CutEvaluator pipeline, space_.EvaluatorOf(candidate, order));
    ASSIGN_OR_RETURN(const int64_t step_ns, pipeline.StepNs({cut.first_layer, {}}));
    return static_cast<double>(step_ns);
  }

  // What the stages of a rank stash of a micro-batch, of the rank that stashes most, for every
  // rank: what the first rank stashes under 1F1B.
  static double UsualStash(const CompiledPlan& compiled,
                           const std::vector<schedule::StageStash>& stash) {
    std::vector<double> per_micro_batch(compiled.ranks.size(), 0.0);
    for (size_t stage = 0; stage < stash.size(); ++stage) {
      per_micro_batch[static_cast<size_t>(compiled.stages[stage].rank.value())] +=
          stash[stage].forward;
    }
    return static_cast<double>(compiled.ranks.size()) *
           *std::max_element(per_micro_batch.begin(), per_micro_batch.end());
  }

  // What memory leaves for the stash of each rank; infinity where nothing limits it.
  static std::vector<double> RoomOf(const CutEvaluator& pipeline, const CompiledPlan& compiled) {
    std::vector<double> room;
    for (Rank rank(0); rank.value() < pipeline.num_ranks(); ++rank) {
      const schedule::MemorySizes& training = compiled.of(rank).training;
      const int64_t memory_bytes = pipeline.devices_of(rank.value()).memory_bytes;
      const auto other_bytes =
          static_cast<double>(training.peak_bytes() - training.peak_stash_bytes);
      room.push_back(memory_bytes == kUnlimitedBytes
                         ? std::numeric_limits<double>::infinity()
                         : std::max(static_cast<double>(memory_bytes) - other_bytes, 0.0));
    }
    return room;
  }

  // Limits of what the ranks may stash, to be tried in turn, the largest first: some that do not
  // move with memory, so that more of it tries all that less does; and shares of what memory
  // leaves, since packing takes more than the sum of the blocks.
  std::vector<std::vector<double>> StashLimits(double usual,
                                               const std::vector<double>& room) const {
    const double most = *std::max_element(room.begin(), room.end());
    std::vector<std::vector<double>> limits;
    for (const double share : kUsualShares) {
      if (share * usual > most) continue;
      limits.emplace_back(room.size(), share * usual);
    }
    if (request_.cluster.limits_memory()) {
      for (const double share : kRoomShares) {
        std::vector<double>& limit = limits.emplace_back();
        for (const double each : room)
          limit.push_back(std::min(share * each, kUsualShares[0] * usual));
      }
    }
    std::stable_sort(limits.begin(), limits.end(), [](const auto& a, const auto& b) {
      return std::accumulate(a.begin(), a.end(), 0.0) > std::accumulate(b.begin(), b.end(), 0.0);
    });
    limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
    return limits;
  }

  const PlannerRequest& request_;
  CandidateSpace& space_;
  FoundPlans& plans_;
  const double effort_;
  Relaxation relaxation_;  // of the devices that orders are made for
  int64_t left_for_best_;
  int64_t left_for_shapes_;
  std::set<std::tuple<Shape, std::vector<int>, std::vector<int>>> searched_;
  int considered_ = 0;
};

}  // namespace

absl::StatusOr<int> SearchOrders(const PlannerRequest& request, CandidateSpace& space,
                                 FoundPlans& plans, int scale) {
  return OrderSearch(request, space, plans, scale).Search();
}

absl::StatusOr<int> SearchOrdersFrom(const PlannerRequest& request, CandidateSpace& space,
                                     FoundPlans& plans, absl::Span<const FoundPlan> starts,
                                     int scale, const Relaxation& relaxation) {
  return OrderSearch(request, space, plans, scale).SearchFrom(starts, relaxation);
}

}  // namespace stagecoach::partition
