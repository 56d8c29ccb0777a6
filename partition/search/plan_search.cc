#include "partition/search/plan_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/plan/split_plan.h"
#include "partition/search/every_order.h"
#include "partition/search/explain.h"
#include "partition/search/order_search.h"
#include "partition/search/starts.h"
#include "schedule/generators/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Schedule;

constexpr int64_t kMaxBatchRows = int64_t{1} << 40;
constexpr size_t kRefined = 4;  // of the best plans
constexpr double kTimeToExplain = 0.15;
constexpr int kConsideredAtOnce = 8;  // before the best are improved again

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
      batch_ns += micro_batches * (layer.forward_ns + layer.again_ns() + layer.backward_input_ns +
                                   layer.backward_weight_ns) +
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

// What a search found out, for the evaluation of another form of its plan.
void TakeOverFindings(PlanEvaluation from, PlanEvaluation& evaluation) {
  evaluation.lower_bound_ns = std::min(from.lower_bound_ns, evaluation.objective_ns);
  evaluation.runner_up = std::move(from.runner_up);
  evaluation.runner_up_reason = std::move(from.runner_up_reason);
  evaluation.changes = std::move(from.changes);
  evaluation.considered = from.considered;
  evaluation.simulated = from.simulated;
  evaluation.is_cut_short = from.is_cut_short;
  evaluation.rounds = from.rounds;
  evaluation.start = from.start;
  evaluation.starts = std::move(from.starts);
}

// All layers of a plan that can do F again.
std::vector<int> RecomputedLayers(const Plan& plan, const Profile& profile) {
  std::vector<int> recomputed;
  for (int i = 0; i < plan.num_layers; ++i) {
    const int layer = plan.order.empty() ? i : plan.order[static_cast<size_t>(i)];
    const LayerCost& cost = profile.sizes.front().layers[static_cast<size_t>(layer)];
    if (cost.recompute_stash_bytes.has_value()) recomputed.push_back(i);
  }
  return recomputed;
}

}  // namespace

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

absl::StatusOr<std::unique_ptr<PlanSearch>> PlanSearch::Create(PlannerRequest request,
                                                               SearchLimits limits) {
  auto task = std::make_unique<Task>(std::move(request), std::move(limits));
  if (task->request.recomputes_all) {
    task->given = task->request.profile;
    for (SizedLayers& sized : task->request.profile.sizes) {
      for (LayerCost& layer : sized.layers) {
        if (layer.recompute_stash_bytes.has_value()) layer = Recomputed(layer);
      }
    }
    for (Plan& start : task->request.starts) {
      if (start.num_layers == task->request.profile.num_layers() &&
          start.recomputed == RecomputedLayers(start, *task->given)) {
        start.recomputed.clear();
      }
    }
  }
  RETURN_IF_ERROR(CheckRequest(task->request));
  ASSIGN_OR_RETURN(CandidateSpace space, CandidateSpace::Create(task->request, task->budget));
  return absl::WrapUnique(new PlanSearch(std::move(task), std::move(space)));
}

absl::StatusOr<PlanEvaluation> PlanSearch::Run() {
  ASSIGN_OR_RETURN(PlanEvaluation found, Search());
  if (!task_->given.has_value()) return found;
  return WithAllRecomputed(std::move(found));
}

absl::StatusOr<PlanEvaluation> PlanSearch::Continue(SearchLimits limits) {
  task_->limits = std::move(limits);
  budget_ = SearchBudget(task_->limits);
  return Run();
}

absl::StatusOr<PlanEvaluation> PlanSearch::Search() {
  if (starts_.empty()) EvaluateStarts();
  if (improves() && plans_.empty()) RETURN_IF_ERROR(ConsiderQuickly());
  RETURN_IF_ERROR(ConsiderAll());
  if (!improves()) RETURN_IF_ERROR(RefineBest());  // rounds do more
  if (TakesAnyOrder() && !has_orders_) RETURN_IF_ERROR(ConsiderOrders());
  RETURN_IF_ERROR(ConsiderStarts());
  const bool is_proved = !plans_.empty() && plans_.IsHopeless(order_bound_ns_);
  if (improves() && !is_proved) RETURN_IF_ERROR(Improve());
  if (!plans_.empty() || best_start_.has_value()) return Finish();
  if (budget_.WasReached()) return NothingYet();
  if (!plans_.has_misfit() && !plans_.refusal().ok()) return plans_.refusal();
  return ExplainMisfit(request_, space_, budget_);
}

// Where steps overlap, their order does not matter.
bool PlanSearch::TakesAnyOrder() const {
  return request_.schedule == kAnySchedule && !request_.given.has_value() &&
         request_.objective == PlanObjective::kStep;
}

void PlanSearch::EvaluateStarts() {
  for (size_t i = 0; i < request_.starts.size(); ++i) {
    absl::StatusOr<PlanEvaluation> evaluation = EvaluateStart(request_.starts[i], request_);
    starts_.push_back(evaluation.status());
    if (!evaluation.ok()) continue;
    if (best_start_.has_value() && best_start_->objective_ns <= evaluation->objective_ns) continue;
    best_start_ = *std::move(evaluation);
    best_start_->start = i;
  }
}

// After the combinations, so that these are searched as without any start, and before the rounds,
// which improve the best of all.
absl::Status PlanSearch::ConsiderStarts() {
  for (size_t i = 0; i < starts_.size(); ++i) {
    const Plan& start = request_.starts[i];
    if (!starts_[i].ok() || start.schedule.IsLowered() || budget_.IsReached()) continue;
    for (const Candidate& candidate : space_.candidates()) {
      const bool is_same_shape = candidate.order == LayerOrder::kGiven &&
                                 candidate.num_stages() == start.num_stages() &&
                                 candidate.replication == start.replication &&
                                 candidate.micro_batches == start.micro_batches();
      if (!is_same_shape) continue;
      ASSIGN_OR_RETURN(const std::vector<int> order, space_.OrderOf(candidate));
      if (order != start.order) continue;
      BestCutOptions options = plans_.CutOptions();
      options.start = start.first_layer;
      RETURN_IF_ERROR(plans_.Consider(candidate, start.schedule, options));
      break;
    }
  }
  return absl::OkStatus();
}

// Where memory is limited, the best cuts take long to find: first some for each combination that
// are found soon, so that there is a good plan however short the time.
absl::Status PlanSearch::ConsiderQuickly() {
  if (!request_.cluster.limits_memory()) return absl::OkStatus();
  BestCutOptions options = plans_.CutOptions();
  options.quick = BestCutOptions::Quick::kOne;
  for (const size_t i : Order()) {
    const Candidate& candidate = space_.candidates()[i];
    if (IsHopeless(candidate.lower_bound_ns) || budget_.IsReached()) continue;
    // Another order of the layers takes long to find.
    if (candidate.order != LayerOrder::kGiven) continue;
    absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
    if (!schedule.ok()) continue;  // said later
    RETURN_IF_ERROR(plans_.Consider(candidate, *std::move(schedule), options));
    considered_.insert(i);
  }
  return rounds_search_.Begin();
}

// The order in which candidates are considered: those with the best plans so far first, then by
// their bounds.
std::vector<size_t> PlanSearch::Order() const {
  const std::vector<Candidate>& candidates = space_.candidates();
  std::vector<double> soonest;
  for (const Candidate& candidate : candidates) {
    const auto found =
        std::find_if(plans_.plans().begin(), plans_.plans().end(),
                     [&](const FoundPlan& plan) { return plan.candidate.IsOfChoice(candidate); });
    soonest.push_back(found == plans_.plans().end() ? std::numeric_limits<double>::infinity()
                                                    : found->found.objective_ns);
  }
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return soonest[a] < soonest[b]; });
  if (!plans_.empty()) return order;
  // Without any plan first the most promising of each schedule with one stage per rank, whose
  // cuts are found soonest: if time runs out, all schedules have been looked at.
  std::set<std::string> schedules;
  std::stable_partition(order.begin(), order.end(), [&](size_t i) {
    return candidates[i].chunks == 1 && schedules.insert(candidates[i].schedule).second;
  });
  return order;
}

absl::Status PlanSearch::ConsiderAll() {
  const std::vector<Candidate>& candidates = space_.candidates();
  int since_improved = 0;
  for (const size_t i : Order()) {
    if (settled_.contains(i) || IsHopeless(candidates[i].lower_bound_ns)) continue;
    if (budget_.IsReached()) {
      plans_.NoteBound(candidates[i].lower_bound_ns);
      continue;
    }
    considered_.insert(i);
    if (IsLeftForRounds(candidates[i])) {
      plans_.NoteBound(candidates[i].lower_bound_ns);
      continue;
    }
    RETURN_IF_ERROR(Consider(candidates[i]));
    if (!budget_.WasReached()) settled_.insert(i);
    if (improves() && ++since_improved == kConsideredAtOnce) {
      since_improved = 0;
      RETURN_IF_ERROR(rounds_search_.Begin());
    }
  }
  return absl::OkStatus();
}

// Where a rank has several stages and memory is limited, the best cut takes long to find and
// nothing is proved by it: what was found soon is improved first.
bool PlanSearch::IsLeftForRounds(const Candidate& candidate) const {
  if (!improves() || candidate.chunks == 1 || !request_.cluster.limits_memory()) return false;
  return std::any_of(plans_.plans().begin(), plans_.plans().end(),
                     [&](const FoundPlan& plan) { return plan.candidate.IsOfChoice(candidate); });
}

// One more than the best is wanted, to have something to compare it with.
bool PlanSearch::IsHopeless(double lower_bound_ns) const {
  return plans_.IsHopeless(lower_bound_ns) && plans_.plans().size() > 1;
}

absl::Status PlanSearch::Consider(Candidate candidate) {
  absl::StatusOr<Schedule> schedule = space_.ScheduleOf(candidate);
  if (!schedule.ok()) {
    plans_.Refuse(schedule.status());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(candidate.lower_bound_ns, space_.LowerBoundNs(candidate, &*schedule));
  if (IsHopeless(candidate.lower_bound_ns)) return absl::OkStatus();
  return plans_.Consider(std::move(candidate), *std::move(schedule), plans_.CutOptions());
}

absl::Status PlanSearch::RefineBest() {
  const std::vector<FoundPlan>& plans = plans_.plans();
  std::vector<FoundPlan> best(plans.begin(), plans.begin() + std::min(plans.size(), kRefined));
  for (FoundPlan& plan : best) {
    const bool is_settled = plan.found.is_optimal || plan.found.is_final;
    if (is_settled || plans_.IsHopeless(plan.candidate.lower_bound_ns)) continue;
    if (budget_.IsReached()) break;
    RETURN_IF_ERROR(plans_.Refine(std::move(plan)));
  }
  return absl::OkStatus();
}

absl::Status PlanSearch::ConsiderOrders() {
  ASSIGN_OR_RETURN(const int orders, SearchOrders(request_, space_, plans_));
  plans_.NoteBound(space_.candidates().front().lower_bound_ns);  // of orders none is proved
  ASSIGN_OR_RETURN(const EveryOrder every, SearchEveryOrder(request_, space_, plans_));
  orders_ = orders + every.considered;
  order_bound_ns_ = every.bound_ns;
  has_orders_ = !budget_.WasReached();
  return absl::OkStatus();
}

// What would change the plan is still to be found out afterwards.
absl::Status PlanSearch::Improve() {
  if (budget_.WasReached()) return absl::OkStatus();
  budget_.Reserve(kTimeToExplain);
  ASSIGN_OR_RETURN(rounds_.count, rounds_search_.Run(TakesAnyOrder()));
  rounds_.are_cut_short = budget_.Release();
  return absl::OkStatus();
}

absl::StatusOr<PlanEvaluation> PlanSearch::EvaluationFor(const FoundPlan& plan,
                                                         const CutEvaluator& pipeline) {
  return EvaluateCut(pipeline, plan.found.cut, request_.profile, request_.cluster,
                     request_.objective);
}

// The same with stages divided for reductions, if that is faster and fits.
absl::StatusOr<PlanEvaluation> PlanSearch::DividedIfFaster(const FoundPlan& found,
                                                           PlanEvaluation evaluation) {
  const Plan plan = SplitForReduction(evaluation.plan(), found.pipeline->layers().layers);
  if (plan.num_stages() == evaluation.plan().num_stages()) return evaluation;
  ASSIGN_OR_RETURN(const CutEvaluator pipeline, space_.EvaluatorOf(found.candidate, plan.schedule));
  ASSIGN_OR_RETURN(PlanEvaluation divided,
                   EvaluateCut(pipeline, {plan.first_layer, plan.recomputed}, request_.profile,
                               request_.cluster, request_.objective));
  if (divided.objective_ns >= evaluation.objective_ns || !CheckFits(divided).ok())
    return evaluation;
  TakeOverFindings(std::move(evaluation), divided);
  return divided;
}

// The plan for the layers as they were given: to the search, those that always do F again are
// layers that take longer and keep less.
absl::StatusOr<PlanEvaluation> PlanSearch::WithAllRecomputed(PlanEvaluation found) const {
  Plan plan = found.plan();
  plan.recomputed = RecomputedLayers(plan, *task_->given);
  ASSIGN_OR_RETURN(PlanEvaluation evaluation,
                   EvaluatePlan(plan, *task_->given, request_.cluster, request_.objective));
  if (found.runner_up.has_value()) {
    found.runner_up->recomputed_layers = evaluation.choice.recomputed_layers;
  }
  TakeOverFindings(std::move(found), evaluation);
  return evaluation;
}

absl::Status PlanSearch::NothingYet() const {
  const absl::Status& reason = budget_.status();
  return absl::Status(
      reason.code(),
      absl::StrFormat("%s before a plan was found (%d of %d combinations were considered)",
                      reason.message(), considered_.size(), space_.candidates().size()));
}

absl::StatusOr<PlanEvaluation> PlanSearch::Finish() {
  if (!plans_.empty()) {
    ASSIGN_OR_RETURN(PlanEvaluation found, FinishWithPlan());
    return OrStart(std::move(found));
  }
  PlanEvaluation found = *best_start_;
  found.lower_bound_ns = space_.candidates().front().lower_bound_ns;
  found.is_cut_short = budget_.WasReached();
  found.considered = static_cast<int>(considered_.size());
  found.simulated = plans_.simulated();
  return OrStart(std::move(found));
}

// The best start, if that is faster than what was found.
PlanEvaluation PlanSearch::OrStart(PlanEvaluation found) const {
  found.starts = starts_;
  found.considered += static_cast<int>(starts_.size());
  const bool is_start_better =
      best_start_.has_value() && best_start_->objective_ns <= found.objective_ns;
  if (!is_start_better) return found;
  PlanEvaluation start = *best_start_;
  found.start = start.start;
  if (start.objective_ns < found.objective_ns) {
    found.runner_up = found.choice;
    found.runner_up_reason = WhyItLost(start, found);
  }
  TakeOverFindings(std::move(found), start);
  return start;
}

absl::StatusOr<PlanEvaluation> PlanSearch::FinishWithPlan() {
  const FoundPlan& best = plans_.best();
  ASSIGN_OR_RETURN(PlanEvaluation evaluation, EvaluationFor(best, *best.pipeline));
  evaluation.lower_bound_ns =
      std::min(evaluation.objective_ns, std::max(plans_.bound_ns(), order_bound_ns_));
  const auto other = std::find_if(plans_.plans().begin() + 1, plans_.plans().end(),
                                  [&](const FoundPlan& plan) { return !plan.IsOfChoice(best); });
  if (other != plans_.plans().end()) {
    ASSIGN_OR_RETURN(const CutEvaluator pipeline,
                     space_.EvaluatorOf(other->candidate, other->schedule));
    ASSIGN_OR_RETURN(const PlanEvaluation loser, EvaluationFor(*other, pipeline));
    evaluation.runner_up = loser.choice;
    evaluation.runner_up_reason = WhyItLost(evaluation, loser);
  }
  ASSIGN_OR_RETURN(evaluation.changes,
                   WhatWouldChange(request_, space_, best.candidate, evaluation, budget_));
  evaluation.is_cut_short = budget_.WasReached();
  evaluation.considered = static_cast<int>(considered_.size()) + orders_;
  evaluation.simulated = plans_.simulated();
  evaluation.rounds = rounds_;
  return DividedIfFaster(best, std::move(evaluation));
}

}  // namespace stagecoach::partition
