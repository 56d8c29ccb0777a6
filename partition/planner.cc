#include "partition/planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
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
// The best few are refined. Searched orders start from the best few of each shape, unless those are
// far behind.
constexpr size_t kRefined = 4;
constexpr size_t kSearchedOfAShape = 2;
constexpr size_t kMostSearched = 3;
constexpr double kFarBehind = 1.15;
// Of the stash that a limit of memory allows, what searched orders may use in turn.
constexpr double kLimitShares[] = {0.85, 0.65, 0.45};
// Of all that a search can do: it finds nearly the best order with a tenth, and several orders, of
// which more fit, are worth more than a better one.
constexpr double kSearchEffort = 0.1;
// Bound of the sum of ranks^2 * micro-batches * chunks, so that all searches together take a second
// or two.
constexpr int64_t kMaxSearchedHere = int64_t{1} << 18;

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

  // Orders of our own, for the best plans with one stage per rank and with two in a V.
  absl::Status SearchOrders() {
    std::vector<std::pair<Outcome, Placement>> starts;
    std::map<std::pair<int, std::vector<int>>, size_t> count;  // by chunks and replicas
    for (const Outcome& outcome : outcomes_) {
      const Candidate& own = outcome.candidate;
      const bool is_v = own.chunks == 2 && outcome.schedule.rank_of_stage.back() == Rank(0);
      if (own.chunks > 1 && !is_v) continue;
      if (outcome.found.objective_ns > kFarBehind * outcomes_.front().found.objective_ns) break;
      if (IsHopeless(own.lower_bound_ns) || starts.size() == kMostSearched) continue;
      if (++count[{own.chunks, own.replicas}] > kSearchedOfAShape) continue;
      starts.emplace_back(outcome, is_v ? Placement::kV : Placement::kLoop);
    }
    for (auto& [outcome, placement] : starts) {
      RETURN_IF_ERROR(SearchOrder(std::move(outcome), placement));
    }
    return absl::OkStatus();
  }

  absl::Status SearchOrder(Outcome start, Placement placement) {
    ASSIGN_OR_RETURN(const Pipeline pipeline, space_.PipelineOf(start.candidate, start.schedule));
    ASSIGN_OR_RETURN(const PlanReport report, pipeline.Report(start.found.cut));
    schedule::AutomaticRequest search;
    search.ranks = start.candidate.num_ranks();
    search.micro_batches = start.candidate.micro_batches;
    search.chunks = start.candidate.chunks;
    search.placement = placement;
    search.costs = pipeline.CostsOf(start.found.cut);
    search.objective = schedule::Objective::kStep;
    search.sends = pipeline.sends();
    search.effort = kSearchEffort;
    std::vector<schedule::StageMemory> memory;
    for (const StageReport& stage : report.stages) memory.push_back(stage.memory);
    search.stash = StashBytes(memory);
    BestCutOptions options = CutOptions();
    options.only_cut = start.found.cut.first_layer;  // the order is made for its costs
    Candidate candidate = std::move(start.candidate);
    ASSIGN_OR_RETURN(candidate.lower_bound_ns, space_.LowerBoundNs(candidate, /*is_fused=*/false));
    const int64_t ranks = candidate.num_ranks();
    const int64_t size = ranks * ranks * candidate.micro_batches * candidate.chunks;
    for (std::vector<double>& limit : StashLimits(pipeline, report, search.stash)) {
      if (size > searches_left_) break;
      searches_left_ -= size;
      search.stash_limit = std::move(limit);
      absl::StatusOr<Schedule> order = schedule::Automatic(search);
      if (absl::IsResourceExhausted(order.status())) continue;  // not even one micro-batch
      if (absl::IsInvalidArgument(order.status())) break;       // too many passes to search
      RETURN_IF_ERROR(order.status());
      ++considered_;
      RETURN_IF_ERROR(Consider(candidate, *std::move(order), options));
    }
    return absl::OkStatus();
  }

  // Limits of what the ranks may stash, to be tried in turn: what the first rank does under 1F1B,
  // or what memory leaves if that is less; all that memory leaves, or twice as much as the first if
  // nothing limits it; and less of what memory leaves, since packing takes more than the sum of the
  // blocks. An order that may keep more need not be faster.
  std::vector<std::vector<double>> StashLimits(
      const Pipeline& pipeline, const PlanReport& report,
      const std::vector<schedule::StageStash>& stash) const {
    std::vector<double> per_micro_batch(report.ranks.size(), 0.0);
    for (size_t stage = 0; stage < stash.size(); ++stage) {
      per_micro_batch[static_cast<size_t>(report.stages[stage].rank.value())] +=
          stash[stage].forward;
    }
    const double usual =
        pipeline.num_ranks() * *std::max_element(per_micro_batch.begin(), per_micro_batch.end());
    std::vector<double> shares = {1.0};
    if (request_.cluster.limits_memory()) {
      shares.insert(shares.end(), std::begin(kLimitShares), std::end(kLimitShares));
    }
    std::vector<std::vector<double>> limits(1 + shares.size());
    for (Rank rank(0); rank.value() < pipeline.num_ranks(); ++rank) {
      const schedule::MemoryPlan& training = report.of(rank).training;
      const int64_t memory_bytes = pipeline.group(rank.value()).memory_bytes;
      const auto other_bytes =
          static_cast<double>(training.peak_bytes() - training.peak_stash_bytes);
      const double room = memory_bytes == kUnlimitedBytes
                              ? 2 * usual
                              : std::max(static_cast<double>(memory_bytes) - other_bytes, 0.0);
      limits[0].push_back(std::min(usual, room));
      for (size_t i = 0; i < shares.size(); ++i) limits[1 + i].push_back(shares[i] * room);
    }
    if (limits[0] == limits[1]) limits.erase(limits.begin());
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
  int64_t searches_left_ = kMaxSearchedHere;
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
