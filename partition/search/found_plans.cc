#include "partition/search/found_plans.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "partition/evaluate/cut_evaluator.h"

namespace stagecoach::partition {
namespace {

using schedule::Schedule;

int64_t InFlight(const CutEvaluator& pipeline) {
  int64_t sum = 0;
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) sum += pipeline.in_flight(stage);
  return sum;
}

}  // namespace

bool FoundPlan::IsBetterThan(const FoundPlan& other) const {
  // The simplest of equals: fewest stages, least in flight, fewest messages.
  return std::tie(found.objective_ns, candidate.chunks, in_flight, candidate.micro_batches) <
         std::tie(other.found.objective_ns, other.candidate.chunks, other.in_flight,
                  other.candidate.micro_batches);
}

bool FoundPlan::IsOfChoice(const FoundPlan& other) const {
  return schedule.name == other.schedule.name && candidate.IsOfShape(other.candidate);
}

BestCutOptions FoundPlans::CutOptions() const {
  return {.objective = request_.objective,
          .may_recompute = request_.may_recompute,
          .may_refine = false};
}

absl::Status FoundPlans::Consider(Candidate candidate, Schedule schedule,
                                  const BestCutOptions& options) {
  absl::StatusOr<CutEvaluator> pipeline = space_.EvaluatorOf(candidate, schedule);
  if (absl::IsInvalidArgument(pipeline.status()) || absl::IsFailedPrecondition(pipeline.status())) {
    refusal_.Update(pipeline.status());
    return absl::OkStatus();
  }
  const bool is_new = options.start.empty() && options.quick == BestCutOptions::Quick::kNo;
  if (IsCutShort(pipeline.status())) {
    NoteBound(candidate.lower_bound_ns);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(pipeline.status());
  absl::StatusOr<BestCut> found = FindBestCut(*pipeline, options, budget_);
  if (IsCutShort(found.status())) {
    NoteBound(candidate.lower_bound_ns);
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(found.status())) {
    has_misfit_ = has_misfit_ || is_new;
    if (is_new && !IsProvenMisfit(*pipeline)) NoteBound(candidate.lower_bound_ns);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(found.status());
  simulated_ += found->simulated;
  // Only the cuts of one order of a graph were considered.
  const bool is_settled = found->is_optimal && request_.profile.is_chain();
  if (is_new && !is_settled) NoteBound(candidate.lower_bound_ns);
  FoundPlan plan = {std::move(candidate), std::move(schedule), *std::move(found),
                    InFlight(*pipeline)};
  if (!is_new && IsKnown(plan)) return absl::OkStatus();
  const auto place =
      std::upper_bound(plans_.begin(), plans_.end(), plan,
                       [](const FoundPlan& a, const FoundPlan& b) { return a.IsBetterThan(b); });
  const bool is_best = place == plans_.begin();
  if (is_best) {
    if (!plans_.empty()) plans_.front().pipeline = nullptr;
    plan.pipeline = std::make_shared<const CutEvaluator>(*std::move(pipeline));
  }
  plans_.insert(place, std::move(plan));
  if (is_best && limits_.on_better != nullptr) limits_.on_better(best().found.objective_ns);
  return absl::OkStatus();
}

bool FoundPlans::IsKnown(const FoundPlan& plan) const {
  return std::any_of(plans_.begin(), plans_.end(), [&](const FoundPlan& known) {
    return known.IsOfChoice(plan) && known.candidate.order == plan.candidate.order &&
           known.found.objective_ns <= plan.found.objective_ns;
  });
}

absl::Status FoundPlans::Refine(FoundPlan plan) {
  BestCutOptions options = CutOptions();
  options.may_refine = true;
  return Consider(std::move(plan.candidate), std::move(plan.schedule), options);
}

// Whether it is certain that no cut fits, and not only that none was found.
bool FoundPlans::IsProvenMisfit(const CutEvaluator& pipeline) const {
  const std::vector<LayerCost>& layers = pipeline.layers().layers;
  const bool recomputes =
      request_.may_recompute && std::any_of(layers.begin(), layers.end(), [](const auto& layer) {
        return layer.recompute_stash_bytes.has_value();
      });
  return !recomputes && pipeline.has_one_stage_per_rank() && request_.profile.is_chain();
}

void FoundPlans::NoteBound(double lower_bound_ns) {
  bound_ns_ = std::min(bound_ns_, lower_bound_ns);
}

}  // namespace stagecoach::partition
