#include "partition/search/planner.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "partition/plan/split_plan.h"
#include "partition/search/best_cut.h"
#include "partition/search/candidates.h"
#include "partition/search/explain.h"
#include "partition/search/found_plans.h"
#include "partition/search/make_receipt.h"
#include "partition/search/order_search.h"
#include "partition/search/receipt_of.h"
#include "schedule/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Schedule;

constexpr int64_t kMaxBatchRows = int64_t{1} << 40;
constexpr size_t kRefined = 4;  // of the best plans

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

// What a search found out, for the receipt of another form of its plan.
void TakeOverFindings(Receipt from, Receipt& receipt) {
  receipt.lower_bound_ns = std::min(from.lower_bound_ns, receipt.objective_ns);
  receipt.runner_up = std::move(from.runner_up);
  receipt.runner_up_reason = std::move(from.runner_up_reason);
  receipt.changes = std::move(from.changes);
  receipt.considered = from.considered;
  receipt.simulated = from.simulated;
  receipt.is_cut_short = from.is_cut_short;
}

class Planner {
 public:
  Planner(const PlannerRequest& request, CandidateSpace& space, const SearchLimits& limits,
          Cutoff& cutoff)
      : request_(request),
        space_(space),
        cutoff_(cutoff),
        plans_(request_, space_, limits, cutoff_) {}

  absl::StatusOr<Receipt> Run() {
    RETURN_IF_ERROR(ConsiderAll());
    RETURN_IF_ERROR(RefineBest());
    if (TakesAnyOrder()) {
      ASSIGN_OR_RETURN(const int orders, SearchOrders(request_, space_, plans_));
      considered_ += orders;
    }
    if (!plans_.empty()) return Finish();
    if (cutoff_.WasReached()) return NothingYet();
    if (!plans_.has_misfit() && !plans_.refusal().ok()) return plans_.refusal();
    return ExplainMisfit(request_, space_, cutoff_);
  }

 private:
  // Where steps overlap, their order does not matter.
  bool TakesAnyOrder() const {
    return request_.schedule == kAnySchedule && !request_.given.has_value() &&
           request_.objective == PlanObjective::kStep;
  }

  static bool IsFused(const Schedule& schedule) {
    for (schedule::StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
      if (schedule.SplitsBackward(stage)) return false;
    }
    return true;
  }

  absl::Status ConsiderAll() {
    const std::vector<Candidate>& candidates = space_.candidates();
    // First the most promising of each schedule with one stage per rank, whose cuts are found
    // soonest: if time runs out, the plan is none the worse for having looked at all schedules.
    std::vector<bool> is_considered(candidates.size());
    std::set<std::string> schedules;
    for (size_t i = 0; i < candidates.size() && !cutoff_.IsReached(); ++i) {
      if (candidates[i].chunks > 1 || !schedules.insert(candidates[i].schedule).second) continue;
      is_considered[i] = true;
      RETURN_IF_ERROR(Consider(candidates[i]));
    }
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (is_considered[i]) continue;
      if (IsHopeless(candidates[i].lower_bound_ns)) break;
      if (cutoff_.IsReached()) {
        plans_.NoteBound(candidates[i].lower_bound_ns);  // those that follow have no lower one
        break;
      }
      RETURN_IF_ERROR(Consider(candidates[i]));
    }
    return absl::OkStatus();
  }

  // One more than the best is wanted, to have something to compare it with.
  bool IsHopeless(double lower_bound_ns) const {
    return plans_.IsHopeless(lower_bound_ns) && plans_.plans().size() > 1;
  }

  absl::Status Consider(Candidate candidate) {
    absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
    if (!schedule.ok()) {
      plans_.Refuse(schedule.status());
      return absl::OkStatus();
    }
    if (IsFused(*schedule)) {
      ASSIGN_OR_RETURN(candidate.lower_bound_ns, space_.LowerBoundNs(candidate, /*is_fused=*/true));
    }
    if (IsHopeless(candidate.lower_bound_ns)) return absl::OkStatus();
    ++considered_;
    return plans_.Consider(std::move(candidate), *std::move(schedule), plans_.CutOptions());
  }

  absl::Status RefineBest() {
    const std::vector<FoundPlan>& plans = plans_.plans();
    std::vector<FoundPlan> best(plans.begin(), plans.begin() + std::min(plans.size(), kRefined));
    for (FoundPlan& plan : best) {
      const bool is_settled = plan.found.is_optimal || plan.found.is_final;
      if (is_settled || plans_.IsHopeless(plan.candidate.lower_bound_ns)) continue;
      if (cutoff_.IsReached()) break;
      RETURN_IF_ERROR(plans_.Refine(std::move(plan)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Receipt> ReceiptFor(const FoundPlan& plan, const Pipeline& pipeline) {
    return MakeReceipt(pipeline, plan.found.cut, request_.profile, request_.cluster,
                       request_.objective);
  }

  // The same with stages divided for reductions, if that is faster and fits.
  absl::StatusOr<Receipt> DividedIfFaster(const FoundPlan& found, Receipt receipt) {
    const Plan plan = SplitForReduction(receipt.plan, found.pipeline->layers().layers);
    if (plan.num_stages() == receipt.plan.num_stages()) return receipt;
    ASSIGN_OR_RETURN(const Pipeline pipeline, space_.PipelineOf(found.candidate, plan.schedule));
    ASSIGN_OR_RETURN(Receipt divided,
                     MakeReceipt(pipeline, {plan.first_layer, plan.recomputed}, request_.profile,
                                 request_.cluster, request_.objective));
    if (divided.objective_ns >= receipt.objective_ns || !CheckFits(divided).ok()) return receipt;
    TakeOverFindings(std::move(receipt), divided);
    return divided;
  }

  static bool AreOfOneChoice(const FoundPlan& a, const FoundPlan& b) {
    return a.schedule.name == b.schedule.name && a.candidate.chunks == b.candidate.chunks &&
           a.candidate.micro_batches == b.candidate.micro_batches &&
           a.candidate.replication == b.candidate.replication;
  }

  absl::Status NothingYet() const {
    const absl::Status& reason = cutoff_.status();
    return absl::Status(
        reason.code(),
        absl::StrFormat("%s before a plan was found (%d of %d combinations were considered)",
                        reason.message(), considered_, space_.candidates().size()));
  }

  absl::StatusOr<Receipt> Finish() {
    const FoundPlan& best = plans_.best();
    ASSIGN_OR_RETURN(Receipt receipt, ReceiptFor(best, *best.pipeline));
    if (TakesAnyOrder()) plans_.NoteBound(space_.candidates().front().lower_bound_ns);
    receipt.lower_bound_ns = std::min(receipt.objective_ns, plans_.bound_ns());
    const auto other =
        std::find_if(plans_.plans().begin() + 1, plans_.plans().end(),
                     [&](const FoundPlan& plan) { return !AreOfOneChoice(best, plan); });
    if (other != plans_.plans().end()) {
      ASSIGN_OR_RETURN(const Pipeline pipeline,
                       space_.PipelineOf(other->candidate, other->schedule));
      ASSIGN_OR_RETURN(const Receipt loser, ReceiptFor(*other, pipeline));
      receipt.runner_up = loser.choice;
      receipt.runner_up_reason = WhyItLost(receipt, loser);
    }
    ASSIGN_OR_RETURN(receipt.changes,
                     WhatWouldChange(request_, space_, best.candidate, receipt, cutoff_));
    receipt.is_cut_short = cutoff_.WasReached();
    receipt.considered = considered_;
    receipt.simulated = plans_.simulated();
    return DividedIfFaster(best, std::move(receipt));
  }

  const PlannerRequest& request_;
  CandidateSpace& space_;
  Cutoff& cutoff_;
  FoundPlans plans_;
  int considered_ = 0;
};

// To the search, layers that always do F again are layers that take longer and keep less.
absl::StatusOr<Receipt> PlanAllRecomputed(const PlannerRequest& request,
                                          const SearchLimits& limits) {
  PlannerRequest changed = request;
  changed.recomputes_all = false;
  for (SizedLayers& sized : changed.profile.sizes) {
    for (LayerCost& layer : sized.layers) {
      if (layer.recompute_stash_bytes.has_value()) layer = Recomputed(layer);
    }
  }
  ASSIGN_OR_RETURN(Receipt found, PlanJointly(changed, limits));
  Plan plan = found.plan;
  for (int i = 0; i < plan.num_layers; ++i) {
    const int layer = plan.order.empty() ? i : plan.order[static_cast<size_t>(i)];
    const LayerCost& given = request.profile.sizes.front().layers[static_cast<size_t>(layer)];
    if (given.recompute_stash_bytes.has_value()) plan.recomputed.push_back(i);
  }
  ASSIGN_OR_RETURN(Receipt receipt,
                   ReceiptOf(plan, request.profile, request.cluster, request.objective));
  if (found.runner_up.has_value()) {
    found.runner_up->recomputed_layers = receipt.choice.recomputed_layers;
  }
  TakeOverFindings(std::move(found), receipt);
  return receipt;
}

}  // namespace

absl::StatusOr<double> JointLowerBoundNs(const PlannerRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  Cutoff never;
  ASSIGN_OR_RETURN(const CandidateSpace space, CandidateSpace::Create(request, never));
  return space.candidates().front().lower_bound_ns;
}

absl::StatusOr<Receipt> PlanJointly(const PlannerRequest& request, const SearchLimits& limits) {
  const absl::Time start = absl::Now();
  if (request.recomputes_all) {
    ASSIGN_OR_RETURN(Receipt receipt, PlanAllRecomputed(request, limits));
    receipt.planning = absl::Now() - start;
    return receipt;
  }
  RETURN_IF_ERROR(CheckRequest(request));
  Cutoff cutoff(limits);
  ASSIGN_OR_RETURN(CandidateSpace space, CandidateSpace::Create(request, cutoff));
  ASSIGN_OR_RETURN(Receipt receipt, Planner(request, space, limits, cutoff).Run());
  receipt.planning = absl::Now() - start;
  return receipt;
}

}  // namespace stagecoach::partition
