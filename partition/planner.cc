// Longer than others: each step of the planner goes by the plans that those before it have found,
// so that what to cut, what to refine and what to search orders for is decided in one class.
#include "partition/planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "partition/best_cut.h"
#include "partition/candidates.h"
#include "partition/explain.h"
#include "partition/make_receipt.h"
#include "partition/stage_costs.h"
#include "schedule/automatic.h"
#include "schedule/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Placement;
using schedule::Rank;
using schedule::Schedule;

constexpr int64_t kMaxBatchRows = int64_t{1} << 40;
// The best few are refined. Searched orders start from the best few of each kind, unless those are
// far behind, and then from a few cuts of each shape.
constexpr size_t kRefined = 4;
constexpr size_t kBestOfAKind = 2;
constexpr size_t kMostBest = 3;
constexpr size_t kCutsOfAShape = 3;
constexpr double kFarBehind = 1.15;
// Of the devices' memory, what cuts are made for that orders start from.
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

// One device alone must come to an end in a time that simulations can hold.
absl::Status CheckDuration(const PlannerRequest& request) {
  double slowest = request.cluster.devices.front().speed;
  for (const ClusterDevice& device : request.cluster.devices) {
    slowest = std::min(slowest, device.speed);
  }
  for (const SizedLayers& sized : request.profile.sizes) {
    double micro_batches = static_cast<double>(request.batch_rows);
    micro_batches = std::max(1.0, micro_batches / static_cast<double>(sized.micro_batch_rows));
    double batch_ns = 0;
    for (const LayerCost& layer : sized.layers) {
      batch_ns += micro_batches *
                      (2 * layer.forward_ns + layer.backward_input_ns + layer.backward_weight_ns) +
                  layer.step_ns;
    }
    if (batch_ns / slowest <= static_cast<double>(schedule::kMaxTimeNs)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "a batch of %d rows would take the slowest device %g s: expected at most %g s",
        request.batch_rows, batch_ns / slowest / 1e9,
        static_cast<double>(schedule::kMaxTimeNs) / 1e9));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const PlannerRequest& request) {
  RETURN_IF_ERROR(CheckProfile(request.profile));
  RETURN_IF_ERROR(CheckCluster(request.cluster));
  if (request.batch_rows < 1 || request.batch_rows > kMaxBatchRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a batch of %d rows: expected 1 to %d", request.batch_rows, kMaxBatchRows));
  }
  RETURN_IF_ERROR(CheckDuration(request));
  if (request.chunks.has_value() && *request.chunks < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages per device: expected at least 1", *request.chunks));
  }
  if (request.schedule == kAnySchedule) return absl::OkStatus();
  return schedule::FindGenerator(request.schedule).status();
}

// A candidate and the best that was found for it.
struct Outcome {
  Candidate candidate;
  Schedule schedule;
  BestCut found;
  int64_t in_flight = 0;  // the sum over the ranks

  bool IsBetterThan(const Outcome& other) const {
    // The simplest of equals: fewest stages, least in flight, fewest messages.
    return std::tie(found.objective_ns, candidate.chunks, in_flight, candidate.micro_batches) <
           std::tie(other.found.objective_ns, other.candidate.chunks, other.in_flight,
                    other.candidate.micro_batches);
  }
};

// What decides how large a search is and what it may find, but for the cut.
using Shape = std::tuple<int, std::vector<int>, int>;

Shape ShapeOf(const Candidate& candidate) {
  return {candidate.chunks, candidate.replicas, candidate.micro_batches};
}

// A cut that an order of our own is made for, with the schedule it was found under.
struct Start {
  Candidate candidate;
  Schedule schedule;
  BestCut found;
};

class Planner {
 public:
  Planner(const PlannerRequest& request, CandidateSpace space)
      : request_(request), space_(std::move(space)) {}

  absl::StatusOr<Receipt> Run() {
    RETURN_IF_ERROR(ConsiderAll());
    RETURN_IF_ERROR(RefineBest());
    if (TakesAnyOrder()) {
      RETURN_IF_ERROR(SearchOrders());
    }
    if (!outcomes_.empty()) return Finish();
    if (!has_misfit_ && !refusal_.ok()) return refusal_;
    return ExplainMisfit(request_, space_);
  }

 private:
  // The short search; the best are refined afterwards.
  BestCutOptions CutOptions() const {
    return {.objective = request_.objective,
            .may_recompute = request_.may_recompute,
            .may_refine = false};
  }

  // Where steps overlap, their order does not matter.
  bool TakesAnyOrder() const {
    return request_.schedule == kAnySchedule && !request_.given.has_value() &&
           request_.objective == PlanObjective::kStep;
  }

  bool IsHopeless(double lower_bound_ns) const {
    return !outcomes_.empty() && lower_bound_ns >= outcomes_.front().found.objective_ns;
  }

  static int64_t InFlight(const Pipeline& pipeline) {
    int64_t sum = 0;
    for (int stage = 0; stage < pipeline.num_stages(); ++stage) sum += pipeline.in_flight(stage);
    return sum;
  }

  static bool IsFused(const Schedule& schedule) {
    for (schedule::StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
      if (schedule.SplitsBackward(stage)) return false;
    }
    return true;
  }

  absl::Status ConsiderAll() {
    for (const Candidate& candidate : space_.candidates()) {
      // One more than the best is wanted, to have something to compare it with.
      if (IsHopeless(candidate.lower_bound_ns) && outcomes_.size() > 1) break;
      absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
      if (!schedule.ok()) {
        refusal_.Update(schedule.status());
        continue;
      }
      Candidate own = candidate;
      if (IsFused(*schedule)) {
        ASSIGN_OR_RETURN(own.lower_bound_ns, space_.LowerBoundNs(candidate, /*is_fused=*/true));
        if (IsHopeless(own.lower_bound_ns) && outcomes_.size() > 1) continue;
      }
      ++considered_;
      RETURN_IF_ERROR(Consider(std::move(own), *std::move(schedule), CutOptions()));
    }
    return absl::OkStatus();
  }

  // Keeps outcomes_ ordered, the best first.
  absl::Status Consider(Candidate candidate, Schedule schedule, const BestCutOptions& options) {
    absl::StatusOr<Pipeline> pipeline = space_.PipelineOf(candidate, schedule);
    if (absl::IsInvalidArgument(pipeline.status()) ||
        absl::IsFailedPrecondition(pipeline.status())) {
      refusal_.Update(pipeline.status());
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(pipeline.status());
    absl::StatusOr<BestCut> found = FindBestCut(*pipeline, options);
    if (absl::IsResourceExhausted(found.status())) {
      has_misfit_ = true;
      if (!IsProvenMisfit(*pipeline)) NoteBound(candidate.lower_bound_ns);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(found.status());
    simulated_ += found->simulated;
    // Of a graph, the cuts of one order were considered.
    if (!found->is_optimal || !request_.profile.is_chain()) NoteBound(candidate.lower_bound_ns);
    Outcome outcome = {std::move(candidate), std::move(schedule), *std::move(found),
                       InFlight(*pipeline)};
    const auto place =
        std::upper_bound(outcomes_.begin(), outcomes_.end(), outcome,
                         [](const Outcome& a, const Outcome& b) { return a.IsBetterThan(b); });
    outcomes_.insert(place, std::move(outcome));
    return absl::OkStatus();
  }

  // Whether it is certain that no cut fits, and not only that none was found.
  bool IsProvenMisfit(const Pipeline& pipeline) const {
    const std::vector<LayerCost>& layers = pipeline.group(0).layers->layers;
    const bool recomputes =
        request_.may_recompute && std::any_of(layers.begin(), layers.end(), [](const auto& layer) {
          return layer.recompute_stash_bytes.has_value();
        });
    return !recomputes && pipeline.has_one_stage_per_rank() && pipeline.is_uniform() &&
           request_.profile.is_chain();
  }

  void NoteBound(double lower_bound_ns) { bound_ns_ = std::min(bound_ns_, lower_bound_ns); }

  absl::Status RefineBest() {
    BestCutOptions options = CutOptions();
    options.may_refine = true;
    std::vector<Outcome> best(outcomes_.begin(),
                              outcomes_.begin() + std::min(outcomes_.size(), kRefined));
    for (Outcome& outcome : best) {
      if (outcome.found.is_optimal || IsHopeless(outcome.candidate.lower_bound_ns)) continue;
      RETURN_IF_ERROR(Consider(std::move(outcome.candidate), std::move(outcome.schedule), options));
    }
    return absl::OkStatus();
  }

  // Orders of our own: for the best that was found to fit, and for every shape, since one whose
  // named schedules fit badly, or do not, may be the fastest under another order.
  absl::Status SearchOrders() {
    for (const Start& start : BestStarts()) RETURN_IF_ERROR(SearchOrder(start, left_for_best_));
    ASSIGN_OR_RETURN(const std::vector<std::vector<Start>> free, FreeStarts());
    for (size_t i = 0; i < free.size(); ++i) {
      if (IsFar(free[i].front().found.objective_ns, kFarBehind)) break;
      const auto shapes_left = static_cast<int64_t>(free.size() - i);
      int64_t share = left_for_shapes_ / shapes_left;
      left_for_shapes_ -= share;
      RETURN_IF_ERROR(SearchShape(free[i], share));
      left_for_shapes_ += share;
    }
    return absl::OkStatus();
  }

  // The best few that were found to fit, unless they are far behind.
  std::vector<Start> BestStarts() const {
    std::vector<Start> starts;
    std::map<std::pair<int, std::vector<int>>, size_t> count;  // by chunks and replicas
    for (const Outcome& outcome : outcomes_) {
      const Candidate& own = outcome.candidate;
      if (!IsSearched(own, outcome.schedule)) continue;
      if (IsFar(outcome.found.objective_ns, kFarBehind) || starts.size() == kMostBest) break;
      if (IsHopeless(own.lower_bound_ns) || ++count[{own.chunks, own.replicas}] > kBestOfAKind) {
        continue;
      }
      starts.push_back({own, outcome.schedule, outcome.found});
    }
    return starts;
  }

  static bool IsSearched(const Candidate& candidate, const Schedule& schedule) {
    const bool is_v = candidate.chunks == 2 && schedule.rank_of_stage.back() == Rank(0);
    return candidate.num_ranks() > 1 && (candidate.chunks == 1 || is_v);
  }

  // By the time it takes.
  static int64_t SearchSize(const Candidate& candidate) {
    return int64_t{candidate.num_ranks()} * candidate.micro_batches * candidate.chunks;
  }

  // For each shape that is not hopeless the best few cuts that no memory limits; the most promising
  // shape first.
  absl::StatusOr<std::vector<std::vector<Start>>> FreeStarts() {
    std::vector<std::vector<Start>> shapes;
    std::set<Shape> known;
    for (const Candidate& candidate : space_.candidates()) {
      if (IsHopeless(candidate.lower_bound_ns)) break;
      if (SearchSize(candidate) > kMaxFromShapes) continue;
      if (!known.insert(ShapeOf(candidate)).second) continue;
      ASSIGN_OR_RETURN(std::vector<Start> starts,
                       PlainStarts(candidate, CandidateSpace::kAnyMemory));
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
    BestCutOptions options = CutOptions();
    options.may_recompute = false;
    std::vector<Start> starts;
    for (const Candidate& candidate : space_.candidates()) {
      if (ShapeOf(candidate) != ShapeOf(shape)) continue;
      absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
      if (!schedule.ok() || !IsSearched(candidate, *schedule)) continue;
      absl::StatusOr<Pipeline> pipeline = space_.PipelineOf(candidate, *schedule, memory_share);
      if (!pipeline.ok()) continue;
      absl::StatusOr<BestCut> found = FindBestCut(*pipeline, options);
      if (absl::IsResourceExhausted(found.status())) continue;
      RETURN_IF_ERROR(found.status());
      simulated_ += found->simulated;
      starts.push_back({candidate, *std::move(schedule), *std::move(found)});
    }
    SortByObjective(starts);
    const bool is_refined = !starts.empty() && !starts.front().found.is_optimal &&
                            RefinementSize(shape) <= kMaxRefinedStart;
    if (is_refined) {
      Start refined = starts.front();
      ASSIGN_OR_RETURN(Pipeline pipeline,
                       space_.PipelineOf(refined.candidate, refined.schedule, memory_share));
      options.may_refine = true;
      ASSIGN_OR_RETURN(refined.found, FindBestCut(pipeline, options));
      simulated_ += refined.found.simulated;
      starts.insert(starts.begin(), std::move(refined));
    }
    DropEqualCuts(starts);
    if (starts.size() > kCutsOfAShape) starts.resize(kCutsOfAShape);
    return starts;
  }

  // Of equal cuts the first is kept.
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
    for (const Outcome& outcome : outcomes_) {
      const bool is_of_shape = ShapeOf(outcome.candidate) == ShapeOf(shape);
      if (!is_of_shape || !IsSearched(outcome.candidate, outcome.schedule)) continue;
      starts.push_back({outcome.candidate, outcome.schedule, outcome.found});
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
        if (SearchSize(shape) > searches_left) break;
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

  // Its best is refined as it would be if no other shape were asked for.
  absl::Status RefineFound(const Candidate& shape) {
    const auto best = std::find_if(outcomes_.begin(), outcomes_.end(), [&](const Outcome& outcome) {
      return ShapeOf(outcome.candidate) == ShapeOf(shape) && outcome.schedule.name != "auto";
    });
    if (best == outcomes_.end() || best->found.is_optimal) return absl::OkStatus();
    if (RefinementSize(shape) >= kMaxRefinedFound) return absl::OkStatus();
    BestCutOptions options = CutOptions();
    options.may_refine = true;
    const Outcome from = *best;  // Consider moves it
    return Consider(from.candidate, from.schedule, options);
  }

  static int64_t RefinementSize(const Candidate& candidate) {
    const int64_t stages = candidate.num_stages();
    return SearchSize(candidate) * stages * stages;
  }

  // Orders for one cut, under one limit of the stash after the other.
  absl::Status SearchOrder(const Start& start, int64_t& searches_left) {
    Candidate candidate = start.candidate;
    ASSIGN_OR_RETURN(candidate.lower_bound_ns, space_.LowerBoundNs(candidate, /*is_fused=*/false));
    if (IsHopeless(candidate.lower_bound_ns)) return absl::OkStatus();
    const int64_t size = SearchSize(candidate);
    if (size > searches_left) return absl::OkStatus();
    const Pipeline::Cut& cut = start.found.cut;
    if (!searched_.emplace(ShapeOf(candidate), cut.first_layer, cut.recomputed).second) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Pipeline pipeline, space_.PipelineOf(candidate, start.schedule));
    ASSIGN_OR_RETURN(const PlanReport report, pipeline.Report(cut));
    const std::vector<double> room = RoomOf(pipeline, report);
    if (*std::min_element(room.begin(), room.end()) <= 0) return absl::OkStatus();
    schedule::AutomaticRequest search;
    search.ranks = candidate.num_ranks();
    search.micro_batches = candidate.micro_batches;
    search.chunks = candidate.chunks;
    search.placement = candidate.chunks == 2 ? Placement::kV : Placement::kLoop;
    search.costs = pipeline.CostsOf(cut);
    search.objective = schedule::Objective::kStep;
    search.sends = pipeline.sends();
    search.effort = kSearchEffort;
    std::vector<schedule::StageMemory> memory;
    for (const StageReport& stage : report.stages) memory.push_back(stage.memory);
    search.stash = StashBytes(memory);
    BestCutOptions options = CutOptions();
    options.only_cut = cut.first_layer;  // the order is made for its costs
    for (std::vector<double>& limit : StashLimits(UsualStash(report, search.stash), room)) {
      if (size > searches_left) break;
      searches_left -= size;
      search.stash_limit = std::move(limit);
      absl::StatusOr<Schedule> order = schedule::Automatic(search);
      if (absl::IsResourceExhausted(order.status())) continue;  // not even one micro-batch
      if (absl::IsInvalidArgument(order.status())) break;       // too many passes to search
      RETURN_IF_ERROR(order.status());
      ++considered_;
      ASSIGN_OR_RETURN(const double step_ns, StepNs(candidate, *order, cut));
      if (outcomes_.size() < 2 || step_ns < outcomes_[1].found.objective_ns) {
        RETURN_IF_ERROR(Consider(candidate, *std::move(order), options));
      }
      // Lower limits only make it slower, nearly always.
      if (!outcomes_.empty() && step_ns >= outcomes_.front().found.objective_ns) break;
    }
    return absl::OkStatus();
  }

  bool IsFar(double objective_ns, double factor) const {
    return !outcomes_.empty() && objective_ns > factor * outcomes_.front().found.objective_ns;
  }

  // Whatever memory it takes.
  absl::StatusOr<double> StepNs(const Candidate& candidate, const Schedule& order,
                                const Pipeline::Cut& cut) {
    ASSIGN_OR_RETURN(const Pipeline pipeline, space_.PipelineOf(candidate, order));
    ASSIGN_OR_RETURN(const int64_t step_ns, pipeline.StepNs({cut.first_layer, {}}));
    return static_cast<double>(step_ns);
  }

  // What the stages of a rank stash of a micro-batch, of the rank that stashes most, for every
  // rank: what the first rank stashes under 1F1B.
  static double UsualStash(const PlanReport& report,
                           const std::vector<schedule::StageStash>& stash) {
    std::vector<double> per_micro_batch(report.ranks.size(), 0.0);
    for (size_t stage = 0; stage < stash.size(); ++stage) {
      per_micro_batch[static_cast<size_t>(report.stages[stage].rank.value())] +=
          stash[stage].forward;
    }
    return static_cast<double>(report.ranks.size()) *
           *std::max_element(per_micro_batch.begin(), per_micro_batch.end());
  }

  // What memory leaves for the stash of each rank; infinity where nothing limits it.
  static std::vector<double> RoomOf(const Pipeline& pipeline, const PlanReport& report) {
    std::vector<double> room;
    for (Rank rank(0); rank.value() < pipeline.num_ranks(); ++rank) {
      const schedule::MemoryPlan& training = report.of(rank).training;
      const int64_t memory_bytes = pipeline.group(rank.value()).memory_bytes;
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

  absl::StatusOr<Receipt> ReceiptFor(const Outcome& outcome) {
    ASSIGN_OR_RETURN(const Pipeline pipeline,
                     space_.PipelineOf(outcome.candidate, outcome.schedule));
    ASSIGN_OR_RETURN(std::vector<int> order, space_.OrderOf(outcome.candidate));
    return MakeReceipt(pipeline, outcome.found.cut, std::move(order), request_.profile,
                       request_.cluster, request_.objective);
  }

  static bool AreOfOneChoice(const Outcome& a, const Outcome& b) {
    return a.schedule.name == b.schedule.name && a.candidate.chunks == b.candidate.chunks &&
           a.candidate.micro_batches == b.candidate.micro_batches &&
           a.candidate.replicas == b.candidate.replicas;
  }

  absl::StatusOr<Receipt> Finish() {
    const Outcome& best = outcomes_.front();
    ASSIGN_OR_RETURN(Receipt receipt, ReceiptFor(best));
    if (!space_.has_all_groupings()) NoteBound(space_.WorkBoundNs());
    if (TakesAnyOrder()) NoteBound(space_.candidates().front().lower_bound_ns);
    receipt.lower_bound_ns = std::min(receipt.objective_ns, bound_ns_);
    const auto other =
        std::find_if(outcomes_.begin() + 1, outcomes_.end(),
                     [&](const Outcome& outcome) { return !AreOfOneChoice(best, outcome); });
    if (other != outcomes_.end()) {
      ASSIGN_OR_RETURN(const Receipt loser, ReceiptFor(*other));
      receipt.runner_up = loser.choice;
      receipt.runner_up_reason = WhyItLost(receipt, loser);
    }
    ASSIGN_OR_RETURN(receipt.changes, WhatWouldChange(request_, space_, best.candidate, receipt));
    receipt.considered = considered_;
    receipt.simulated = simulated_;
    return receipt;
  }

  const PlannerRequest& request_;
  CandidateSpace space_;
  std::vector<Outcome> outcomes_;  // the best first
  double bound_ns_ = std::numeric_limits<double>::infinity();
  absl::Status refusal_;  // the first one
  bool has_misfit_ = false;
  int64_t left_for_best_ = kMaxFromBest;
  int64_t left_for_shapes_ = kMaxFromShapes;
  std::set<std::tuple<Shape, std::vector<int>, std::vector<int>>> searched_;
  int considered_ = 0;
  int simulated_ = 0;
};

}  // namespace

absl::StatusOr<Receipt> PlanJointly(const PlannerRequest& request) {
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(CandidateSpace space, CandidateSpace::Create(request));
  ASSIGN_OR_RETURN(Receipt receipt, Planner(request, std::move(space)).Run());
  receipt.planning = absl::Now() - start;
  return receipt;
}

}  // namespace stagecoach::partition
